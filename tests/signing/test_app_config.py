"""Secrets at rest, and the document that holds them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ledgerstone.errors import BadInput, Malformed, NotFound, SecretUnreadable, TooLarge
from ledgerstone.signing import app_config, sealing
from ledgerstone.signing.app_config import AppConfig, decode_app_config, encode_app_config
from ledgerstone.signing.sealing import KeyDerivation, SealedSecret, SealingKey, seal, unseal

QUICK = KeyDerivation(salt=b"salt of the test", memory_kib=8 * 1024, iterations=1, lanes=1)
KEY = SealingKey(bytes(range(32)))
MNEMONIC = b"abandon abandon abandon"


def test_published_hchacha() -> None:
    """HChaCha20 gives the published key."""
    nonce = bytes.fromhex("000000090000004a0000000031415927")

    derived = sealing.hchacha(bytes(range(32)), nonce)

    assert derived.hex() == "82413b4227b27bfed30e42508a877d73a0f9e4d58a74a853c12ec41326d3ecdc"


def test_published_xchacha() -> None:
    """XChaCha20-Poly1305 gives the published ciphertext and tag, and reads it."""
    key, nonce = bytes(range(0x80, 0xA0)), bytes(range(0x40, 0x58))
    bound = bytes.fromhex("50515253c0c1c2c3c4c5c6c7")
    plaintext = (
        b"Ladies and Gentlemen of the class of '99: If I could offer you"
        b" only one tip for the future, sunscreen would be it."
    )

    ciphertext = sealing.xchacha_encrypt(key, nonce, plaintext, bound)

    assert ciphertext.hex().startswith("bd6d179d3e83d43b9576579493c0e939572a1700252bfaccbed2902c")
    assert ciphertext.hex().endswith("c0875924c1c7987947deafd8780acf49")
    assert sealing.xchacha_decrypt(key, nonce, ciphertext, bound) == plaintext


@given(name=st.text(st.characters(exclude_categories=["Cs"])), secret=st.binary())
def test_what_is_sealed_is_unsealed(name: str, secret: bytes) -> None:
    """A secret is read with its key and name; sealing it again gives other bytes."""
    sealed = seal(KEY, name, secret)

    assert unseal(KEY, name, sealed) == secret
    assert seal(KEY, name, secret) != sealed


@given(st.data())
def test_changed_ciphertexts(data: st.DataObject) -> None:
    """A secret of which any byte was changed, added or removed is SecretUnreadable."""
    sealed = seal(KEY, "mnemonic", MNEMONIC)
    field = data.draw(st.sampled_from(["nonce", "ciphertext"]))
    changed = bytearray(getattr(sealed, field))
    at = data.draw(st.integers(0, len(changed) - 1))
    changed[at : at + 1] = data.draw(st.binary(max_size=2))
    assume(changed != getattr(sealed, field))

    with pytest.raises(SecretUnreadable):
        unseal(KEY, "mnemonic", msgspec.structs.replace(sealed, **{field: bytes(changed)}))


def test_another_key_or_name() -> None:
    """A secret is SecretUnreadable with another key, and under another name."""
    sealed = seal(KEY, "mnemonic", MNEMONIC)

    with pytest.raises(SecretUnreadable):
        unseal(SealingKey(bytes(32)), "mnemonic", sealed)
    with pytest.raises(SecretUnreadable):
        unseal(KEY, "token", sealed)


@pytest.mark.parametrize(
    "wrong",
    [
        {"salt": b"short"},
        {"salt": bytes(65)},
        {"memory_kib": 1024},
        {"memory_kib": 2**31},
        {"iterations": 0},
        {"iterations": 10**9},
        {"lanes": 0},
        {"lanes": 1000},
    ],
    ids=str,
)
def test_hostile_parameters(wrong: dict[str, Any]) -> None:
    """Stored parameters that would weaken the key or exhaust the machine are refused."""
    with pytest.raises(BadInput, match=next(iter(wrong))):
        sealing.derive_key("passphrase", msgspec.structs.replace(QUICK, **wrong))


@pytest.mark.parametrize("wrong", ["", "\ud800"])
def test_passphrases_that_are_none(wrong: str) -> None:
    """An empty passphrase, and one that is no text, is BadInput."""
    with pytest.raises(BadInput):
        sealing.derive_key(wrong, QUICK)


def test_fresh_parameters() -> None:
    """Fresh parameters are within the bounds, with a salt of their own."""
    first, second = KeyDerivation.fresh(), KeyDerivation.fresh()

    assert first.salt != second.salt
    assert len(sealing.derive_key("passphrase", first)) == 32


def test_a_configuration() -> None:
    """Secrets are not in the document in clear, and are read with the passphrase."""
    empty = AppConfig(derivation=QUICK, settings={"node": "local"})
    config = empty.with_secret(empty.unlock("passphrase"), "mnemonic", MNEMONIC)

    document = encode_app_config(config)
    read = decode_app_config(document)

    assert MNEMONIC not in document
    assert b"passphrase" not in document
    assert read == config
    assert read.secret(read.unlock("passphrase"), "mnemonic") == MNEMONIC
    with pytest.raises(SecretUnreadable):
        read.unlock("another")
    with pytest.raises(NotFound):
        read.secret(KEY, "token")


@pytest.mark.parametrize(
    "document",
    [
        b"",
        b"{}",
        b"null",
        b"\xff",
        b'{"service": {"node_url": "x"}}',
        b'{"version":2,"derivation":{"salt":""}}',
        b'{"derivation":{"salt":"AA==","memory_kib":1e308}}',
        b'{"derivation":{"salt":"!"}}',
        b"[" * 100_000,
        b'{"derivation":{"salt":"AA=="},"settings":{"a":"\\ud800"}}',
        b" " * (app_config.CONFIG_BYTES_MAX + 1),
    ],
    ids=lambda document: repr(document[:40]),
)
def test_foreign_documents(document: bytes) -> None:
    """A document of another program, a damaged and a hostile one are Malformed."""
    with pytest.raises(Malformed):
        decode_app_config(document)


def test_limits() -> None:
    """Secrets have a largest size and number, a name, and the document has a largest size."""
    config = AppConfig(derivation=QUICK)
    many = {f"s{n}": SealedSecret(nonce=b"", ciphertext=b"") for n in range(app_config.SECRETS_MAX)}
    full = msgspec.structs.replace(config, secrets=many)

    with pytest.raises(BadInput):
        config.with_secret(KEY, "big", bytes(sealing.SECRET_BYTES_MAX + 1))
    with pytest.raises(TooLarge):
        full.with_secret(KEY, "one more", b"")
    with pytest.raises(BadInput):
        config.with_secret(KEY, "", b"")
    with pytest.raises(TooLarge):
        encode_app_config(
            msgspec.structs.replace(config, settings={"a": "x" * app_config.CONFIG_BYTES_MAX})
        )
