"""A group at the command line: real keys in files, and the calls of a request's life."""

from __future__ import annotations

from typing import Any

import msgspec

from ledgerstone.signing import schnorr
from ledgerstone.signing.hashes import payload_hash
from tests.cli.program import Ended, Program
from tests.signing.people import address

TX = "cc" * 32
NAMES = ("ann", "bob", "cyd", "dee", "eve")


class Treasury:
    """A program with a group whose members have the first names of `NAMES`."""

    def __init__(self, program: Program, threshold: int, members: int, *policy: object) -> None:
        self.program = program
        self.names = NAMES[:members]
        self.threshold = threshold
        for number, name in enumerate(self.names, start=1):
            self.write_key(name, schnorr_secret(number).hex())
        keys = [f"--member={name}={self.public_key(name)}" for name in self.names]
        made = self.call("group", "new", f"--threshold={threshold}", *keys, *policy)
        self.group_id: str = made["group_id"]

    def write_key(self, name: str, content: str, mode: int = 0o600) -> None:
        path = self.program.folder / f"{name}.key"
        path.write_text(content)
        path.chmod(mode)

    def public_key(self, name: str) -> str:
        key: str = self.call("group", "key", f"--key-file={name}.key")["public_key"]
        return key

    def run(self, *words: object, **environment: str) -> Ended:
        """`ledgerstone signing`, as people call it."""
        return self.program.run("signing", *words, **environment)

    def call(self, *words: object) -> Any:
        """The same for programs; it succeeds."""
        ended = self.run(*words, "--json")
        assert ended.code == 0, ended.out + ended.err
        return ended.json

    def refused(self, *words: object, **environment: str) -> tuple[int, str, str]:
        """It is refused: the exit code, the error's code and its message; stderr says the same."""
        machine = self.run(*words, "--json", **environment)
        people = self.run(*words, **environment)
        error = machine.json["error"]
        assert set(error) == {"code", "message", "hint", "retryable"}
        assert people.code == machine.code
        assert people.err.startswith(f"error: {error['message']}")
        assert "Traceback" not in people.err
        assert people.out == ""
        return machine.code, error["code"], error["message"]

    def event(self, name: str = "invoice-7", amount: str = "10", *more: object) -> str:
        words = ("event", "new", name, "--to", address(1), "--amount", amount, "--by=ann", *more)
        found: str = self.call(*words)["event_hash"]
        return found

    def transaction(self, name: str = "r1", **changes: object) -> str:
        """A file with a transaction."""
        content = {
            "tx_template_hash": "aa" * 32,
            "kpsbt_blob": "00ff",
            "inputs": [
                {
                    "utxo_tx_id": "bb" * 32,
                    "utxo_output_index": index,
                    "utxo_value": 1000,
                    "signing_hash": payload_hash(f"{name}/{index}".encode()).hex(),
                }
                for index in range(2)
            ],
        }
        file = self.program.folder / f"{name}.json"
        file.write_bytes(msgspec.json.encode(content | changes))
        return file.name

    def proposing(self, event_hash: str, name: str = "r1", **changes: object) -> list[object]:
        """The words that propose a transaction."""
        file = self.transaction(name, **changes)
        return ["propose", event_hash, file, f"--group={self.group_id}", "--peer=ann", "--id", name]

    def propose(self, name: str = "r1", amount: str = "10") -> str:
        self.call(*self.proposing(self.event(f"invoice-{name}", amount), name))
        return name

    def approve(self, name: str = "r1", amount: str = "10") -> str:
        self.propose(name, amount)
        for peer in self.names[: self.threshold]:
            self.call("ack", name, "--peer", peer, "--accept")
        return name

    def sign(self, name: str = "r1", amount: str = "10") -> str:
        self.approve(name, amount)
        for peer in self.names[: self.threshold]:
            self.call("sign", name, "--key-file", f"{peer}.key")
        return name


def schnorr_secret(number: int) -> bytes:
    """The private key of a member."""
    secret = payload_hash(f"member {number}".encode())
    schnorr.public_key(secret)
    return secret
