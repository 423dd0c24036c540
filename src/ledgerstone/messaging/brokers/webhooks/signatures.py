"""Signatures of Standard Webhooks 1.0, by HMAC-SHA256 (`v1`) and ed25519 (`v1a`).

The signed content is `id.timestamp.body`. Each secret adds a signature, so that receivers can
change from one secret to the next while both are in use.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Callable, Sequence

from ledgerstone.errors import BadInput

SYMMETRIC = "whsec_"
ASYMMETRIC = "whsk_"
SYMMETRIC_BYTES_MIN = 24
SYMMETRIC_BYTES_MAX = 64
SEED_BYTES = 32
KEY_PAIR_BYTES = 64

Sign = Callable[[bytes], str]


def signers(secrets: Sequence[str], *, destination: str) -> list[Sign]:
    """The signing functions of these secrets. Raises BadInput without showing the secret."""
    return [
        _signer(secret, f"secret {number} of the destination {destination}")
        for number, secret in enumerate(secrets, start=1)
    ]


def signature(signing: Sequence[Sign], message_id: str, timestamp: int, body: bytes) -> str:
    """The value of the header `webhook-signature`."""
    content = b"%s.%d.%s" % (message_id.encode(), timestamp, body)
    return " ".join(sign(content) for sign in signing)


def _signer(secret: str, which: str) -> Sign:
    if secret.startswith(SYMMETRIC):
        return _symmetric(_decoded(secret.removeprefix(SYMMETRIC), which), which)
    if secret.startswith(ASYMMETRIC):
        return _asymmetric(_decoded(secret.removeprefix(ASYMMETRIC), which), which)
    hint = f"write {SYMMETRIC} or {ASYMMETRIC} and the secret in base64"
    raise BadInput(f"{which} has an unknown prefix", hint=hint)


def _decoded(text: str, which: str) -> bytes:
    # Padding is often missing.
    padded = text + "=" * (-len(text) % 4)
    try:
        return base64.b64decode(padded, validate=True)
    except (binascii.Error, ValueError):
        # Not chained: the error could show the secret.
        raise BadInput(f"{which} is not valid base64", hint="copy the whole secret again") from None


def _symmetric(key: bytes, which: str) -> Sign:
    if not SYMMETRIC_BYTES_MIN <= len(key) <= SYMMETRIC_BYTES_MAX:
        message = f"{which} has {len(key)} bytes"
        allowed = f"{SYMMETRIC_BYTES_MIN} to {SYMMETRIC_BYTES_MAX}"
        raise BadInput(message, hint=f"use {allowed} random bytes")

    def sign(content: bytes) -> str:
        return f"v1,{_encoded(hmac.digest(key, content, hashlib.sha256))}"

    return sign


def _asymmetric(key: bytes, which: str) -> Sign:
    try:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    except ModuleNotFoundError as error:
        message = f"{which} is an ed25519 key, and the package cryptography is not installed"
        raise BadInput(message, hint="install ledgerstone[webhook-ed25519]") from error
    if len(key) not in {SEED_BYTES, KEY_PAIR_BYTES}:
        message = f"{which} has {len(key)} bytes"
        hint = f"an ed25519 key has {SEED_BYTES} bytes, or {KEY_PAIR_BYTES} with its public key"
        raise BadInput(message, hint=hint)
    private = Ed25519PrivateKey.from_private_bytes(key[:SEED_BYTES])
    if key[SEED_BYTES:] not in {b"", private.public_key().public_bytes_raw()}:
        raise BadInput(f"the public key of {which} does not match its private key")

    def sign(content: bytes) -> str:
        return f"v1a,{_encoded(private.sign(content))}"

    return sign


def _encoded(raw: bytes) -> str:
    return base64.b64encode(raw).decode()
