<?php

/*
 * What an application with Symfony Messenger does to the tables that it shares with Ledgerstone.
 *
 * php messenger.php '{"connection": {…}, "table": "…", "queue": "…", "serializer": "json"}' ACT [ARGUMENT]
 *
 * The answer is one JSON document on the standard output.
 */

use Doctrine\DBAL\DriverManager;
use Symfony\Component\Console\Tester\CommandTester;
use Symfony\Component\Messenger\Bridge\Doctrine\Transport\Connection;
use Symfony\Component\Messenger\Bridge\Doctrine\Transport\DoctrineTransport;
use Symfony\Component\Messenger\Command\FailedMessagesShowCommand;
use Symfony\Component\Messenger\Envelope;
use Symfony\Component\Messenger\Stamp\DelayStamp;
use Symfony\Component\Messenger\Stamp\ErrorDetailsStamp;
use Symfony\Component\Messenger\Stamp\SentToFailureTransportStamp;
use Symfony\Component\Messenger\Transport\Serialization\PhpSerializer;
use Symfony\Component\Messenger\Transport\Serialization\Serializer;
use Symfony\Component\Messenger\Transport\Serialization\SerializerInterface;
use Symfony\Component\Serializer\Encoder\JsonEncoder;
use Symfony\Component\Serializer\Normalizer\ArrayDenormalizer;
use Symfony\Component\Serializer\Normalizer\DateTimeNormalizer;
use Symfony\Component\Serializer\Normalizer\ObjectNormalizer;
use Symfony\Component\Serializer\Serializer as JsonSerializer;
use Symfony\Contracts\Service\ServiceProviderInterface;

foreach (['Doctrine/DBAL', 'Symfony/Component/Messenger', 'Symfony/Component/Serializer',
    'Symfony/Component/PropertyAccess', 'Symfony/Component/Console'] as $part) {
    require_once "/usr/share/php/$part/autoload.php";
}

class OrderPlaced
{
    public int $order = 7;
}

function serializer(string $name): SerializerInterface
{
    if ('php' === $name) {
        return new PhpSerializer();
    }
    if ('json' !== $name) {
        require_once $name;

        return new LedgerstoneSerializer();
    }
    $normalizers = [new DateTimeNormalizer(), new ArrayDenormalizer(), new ObjectNormalizer()];

    return new Serializer(new JsonSerializer($normalizers, [new JsonEncoder()]));
}

/** What a container gives its commands: the failure transports by name. */
function failures(DoctrineTransport $transport): ServiceProviderInterface
{
    return new class($transport) implements ServiceProviderInterface {
        public function __construct(private DoctrineTransport $transport)
        {
        }

        public function get(string $id): mixed
        {
            return $this->transport;
        }

        public function has(string $id): bool
        {
            return 'failed' === $id;
        }

        public function getProvidedServices(): array
        {
            return ['failed' => '?'];
        }
    };
}

$given = json_decode($argv[1], true, 16, \JSON_THROW_ON_ERROR);
date_default_timezone_set($given['time_zone'] ?? 'UTC');
$options = ['table_name' => $given['table'], 'queue_name' => $given['queue']];
$connection = new Connection($options, DriverManager::getConnection($given['connection']));
$transport = new DoctrineTransport($connection, serializer($given['serializer']));

/** @return array<string, callable(): mixed> */
$acts = [
    'setup' => static fn () => $transport->setup(),
    'send' => static fn () => $transport->send(new Envelope(new OrderPlaced(), [
        ...isset($argv[3]) ? [new DelayStamp((int) $argv[3])] : [],
    ])),
    'fail' => static fn () => $transport->send(new Envelope(new OrderPlaced(), [
        new SentToFailureTransportStamp('async'),
        new ErrorDetailsStamp('LogicException', 0, 'no such order'),
    ])),
    'get' => static function () use ($transport) {
        $got = [];
        foreach ($transport->get() as $envelope) {
            $got[] = [get_class($envelope->getMessage()), get_object_vars($envelope->getMessage())];
            $transport->ack($envelope);
        }

        return $got;
    },
    'show' => static function () use ($transport, $argv) {
        $command = new CommandTester(new FailedMessagesShowCommand('failed', failures($transport)));
        $command->execute(['id' => $argv[3] ?? null, '--transport' => 'failed']);

        return $command->getDisplay();
    },
];
try {
    $answer = $acts[$argv[2]]();
    $said = ['answer' => $answer instanceof Envelope ? null : $answer];
} catch (Throwable $error) {
    $said = ['error' => get_class($error).': '.$error->getMessage()];
}
echo json_encode($said, \JSON_THROW_ON_ERROR), "\n";
