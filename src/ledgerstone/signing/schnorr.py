"""Schnorr signatures after BIP340, over a hash of 32 bytes."""

from __future__ import annotations

from secrets import token_bytes
from typing import NewType

from coincurve import PrivateKey, PublicKeyXOnly

from ledgerstone.errors import SignatureInvalid

PublicKey = NewType("PublicKey", bytes)
"""An x-only public key that lies on the curve."""

HASH_BYTES = 32
SECRET_BYTES = 32
SIGNATURE_BYTES = 64
X_ONLY_BYTES = 32
COMPRESSED_BYTES = 33


def parse_public_key(data: bytes) -> PublicKey:
    """The x-only key of 32 bytes, or of a compressed key of 33 bytes, whose sign BIP340 ignores."""
    x_only = data
    if len(data) == COMPRESSED_BYTES and data[0] in {2, 3}:
        x_only = data[1:]
    if len(x_only) != X_ONLY_BYTES:
        raise SignatureInvalid(
            f"a public key has {X_ONLY_BYTES} bytes, or {COMPRESSED_BYTES} with its sign,"
            f" this one {len(data)}"
        )
    try:
        PublicKeyXOnly(x_only)
    except ValueError as error:
        raise SignatureInvalid("the public key is no point of the curve") from error
    return PublicKey(bytes(x_only))


def public_key(secret: bytes) -> PublicKey:
    """The public key of a secret key."""
    return PublicKey(PublicKeyXOnly.from_secret(_secret(secret).secret).format())


def sign(secret: bytes, signing_hash: bytes, *, randomness: bytes | None = None) -> bytes:
    """The signature of a hash; `randomness` (32 bytes) is for tests that need it repeatable."""
    _check_length(signing_hash, HASH_BYTES, "hash")
    randomness = token_bytes(HASH_BYTES) if randomness is None else randomness
    _check_length(randomness, HASH_BYTES, "randomness")
    return _secret(secret).sign_schnorr(signing_hash, randomness)


def verify(key: PublicKey, signing_hash: bytes, signature: bytes) -> None:
    """SignatureInvalid unless the key signed the hash."""
    _check_length(signing_hash, HASH_BYTES, "hash")
    _check_length(signature, SIGNATURE_BYTES, "signature")
    if not PublicKeyXOnly(key).verify(signature, signing_hash):
        raise SignatureInvalid("the signature is not the key's, or not for this hash")


def _secret(secret: bytes) -> PrivateKey:
    _check_length(secret, SECRET_BYTES, "secret key")
    try:
        return PrivateKey(secret)
    except ValueError as error:
        raise SignatureInvalid("the secret key is zero or beyond the order of the curve") from error


def _check_length(data: bytes, length: int, what: str) -> None:
    if len(data) != length:
        raise SignatureInvalid(f"a {what} has {length} bytes, this one {len(data)}")
