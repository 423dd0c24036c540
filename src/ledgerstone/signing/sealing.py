"""Secrets at rest: XChaCha20-Poly1305, with a key that Argon2id derives from a passphrase."""

from __future__ import annotations

from secrets import token_bytes
from struct import pack, unpack
from typing import NewType

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from cryptography.hazmat.primitives.kdf.argon2 import Argon2id

from ledgerstone.errors import BadInput, SecretUnreadable

SealingKey = NewType("SealingKey", bytes)

KEY_BYTES = 32
NONCE_BYTES = 24
TAG_BYTES = 16
SALT_BYTES_MIN = 16
SALT_BYTES_MAX = 64
MEMORY_KIB_MIN = 8 * 1024
MEMORY_KIB_MAX = 1024 * 1024
ITERATIONS_MAX = 16
LANES_MAX = 8
SECRET_BYTES_MAX = 64 * 1024

_CONSTANTS = (0x61707865, 0x3320646E, 0x79622D32, 0x6B206574)


class KeyDerivation(msgspec.Struct, frozen=True, kw_only=True):
    """How the key comes from the passphrase. It is stored, and its bounds are checked when read.

    The defaults are the second choice of RFC 9106: 64 MiB, three passes, four lanes.
    """

    salt: bytes
    memory_kib: int = 64 * 1024
    iterations: int = 3
    lanes: int = 4

    @classmethod
    def fresh(cls) -> KeyDerivation:
        """With a random salt."""
        return cls(salt=token_bytes(SALT_BYTES_MIN))


class SealedSecret(msgspec.Struct, frozen=True, kw_only=True):
    """A secret that only the key can read; the ciphertext ends in its tag."""

    nonce: bytes
    ciphertext: bytes


def derive_key(passphrase: str, derivation: KeyDerivation) -> SealingKey:
    """The key of a passphrase; BadInput if the parameters are out of bounds."""
    bounds = {
        "salt": (len(derivation.salt), SALT_BYTES_MIN, SALT_BYTES_MAX),
        "memory_kib": (derivation.memory_kib, MEMORY_KIB_MIN, MEMORY_KIB_MAX),
        "iterations": (derivation.iterations, 1, ITERATIONS_MAX),
        "lanes": (derivation.lanes, 1, LANES_MAX),
    }
    for name, (value, least, most) in bounds.items():
        if not least <= value <= most:
            raise BadInput(f"{name} is from {least} to {most}, not {value}")
    if not passphrase:
        raise BadInput("the passphrase is empty")
    kdf = Argon2id(
        salt=derivation.salt,
        length=KEY_BYTES,
        iterations=derivation.iterations,
        lanes=derivation.lanes,
        memory_cost=derivation.memory_kib,
    )
    return SealingKey(kdf.derive(_utf8(passphrase)))


def seal(key: SealingKey, name: str, secret: bytes) -> SealedSecret:
    """A secret, sealed under a name: under another name it cannot be read."""
    if len(secret) > SECRET_BYTES_MAX:
        raise BadInput(f"a secret has at most {SECRET_BYTES_MAX} bytes")
    nonce = token_bytes(NONCE_BYTES)
    return SealedSecret(nonce=nonce, ciphertext=xchacha_encrypt(key, nonce, secret, _utf8(name)))


def unseal(key: SealingKey, name: str, sealed: SealedSecret) -> bytes:
    """The secret; SecretUnreadable if key or name are others or a byte was changed."""
    if len(sealed.nonce) != NONCE_BYTES:
        raise SecretUnreadable(f"a nonce has {NONCE_BYTES} bytes, this one {len(sealed.nonce)}")
    if not TAG_BYTES <= len(sealed.ciphertext) <= SECRET_BYTES_MAX + TAG_BYTES:
        raise SecretUnreadable(f"no ciphertext has {len(sealed.ciphertext)} bytes")
    try:
        return xchacha_decrypt(key, sealed.nonce, sealed.ciphertext, _utf8(name))
    except InvalidTag as error:
        raise SecretUnreadable(f"{name!r} cannot be read with this passphrase") from error


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise BadInput("half of a surrogate pair is no text") from error


def xchacha_encrypt(key: bytes, nonce: bytes, plaintext: bytes, bound: bytes) -> bytes:
    """XChaCha20-Poly1305 with a nonce of 24 bytes; `bound` is authenticated and not encrypted."""
    return ChaCha20Poly1305(hchacha(key, nonce[:16])).encrypt(
        bytes(4) + nonce[16:], plaintext, bound
    )


def xchacha_decrypt(key: bytes, nonce: bytes, ciphertext: bytes, bound: bytes) -> bytes:
    """The plaintext, or InvalidTag."""
    return ChaCha20Poly1305(hchacha(key, nonce[:16])).decrypt(
        bytes(4) + nonce[16:], ciphertext, bound
    )


def hchacha(key: bytes, nonce: bytes) -> bytes:
    """HChaCha20: a key from a key and a nonce of 16 bytes.

    It is the first and the last row of ChaCha20's state after its rounds. A block of ChaCha20 is
    that state plus the state before the rounds, whose first row are constants and whose last row is
    the nonce: subtracting them from the block leaves HChaCha20.
    """
    block = Cipher(ChaCha20(key, nonce), mode=None).encryptor().update(bytes(64))
    words = unpack("<16I", block)
    known = (*_CONSTANTS, *unpack("<4I", nonce))
    rows = words[:4] + words[12:]
    derived = [(word - before) % 2**32 for word, before in zip(rows, known, strict=True)]
    return pack("<8I", *derived)
