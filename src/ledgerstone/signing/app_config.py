"""The value of `cfg:app`: JSON with plain settings, and secrets that are sealed.

The passphrase is never stored. Another program's document under this key is Malformed here, and is
left as it is.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from ledgerstone.errors import BadInput, Malformed, NotFound, TooLarge
from ledgerstone.signing.sealing import (
    KeyDerivation,
    SealedSecret,
    SealingKey,
    derive_key,
    seal,
    unseal,
)

CONFIG_BYTES_MAX = 1024 * 1024
SECRETS_MAX = 64
NAME_CHARS_MAX = 128


class AppConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The configuration of the service."""

    version: int = 1
    derivation: KeyDerivation
    settings: Mapping[str, str] = {}
    secrets: Mapping[str, SealedSecret] = {}

    def unlock(self, passphrase: str) -> SealingKey:
        """The key for its secrets; SecretUnreadable if the passphrase opens none of them."""
        key = derive_key(passphrase, self.derivation)
        for name, sealed in list(self.secrets.items())[:1]:
            unseal(key, name, sealed)
        return key

    def secret(self, key: SealingKey, name: str) -> bytes:
        """One secret in clear."""
        if name not in self.secrets:
            raise NotFound(f"there is no secret {name!r}")
        return unseal(key, name, self.secrets[name])

    def with_secret(self, key: SealingKey, name: str, secret: bytes) -> AppConfig:
        """The same configuration with a secret added or replaced."""
        if not 0 < len(name) <= NAME_CHARS_MAX:
            raise BadInput(f"the name of a secret has 1 to {NAME_CHARS_MAX} characters")
        secrets = {**self.secrets, name: seal(key, name, secret)}
        if len(secrets) > SECRETS_MAX:
            raise TooLarge(f"there are at most {SECRETS_MAX} secrets")
        return msgspec.structs.replace(self, secrets=secrets)


def encode_app_config(config: AppConfig) -> bytes:
    """The JSON document; TooLarge beyond its limit."""
    data = msgspec.json.encode(config, order="sorted")
    if len(data) > CONFIG_BYTES_MAX:
        raise TooLarge(f"cfg:app has at most {CONFIG_BYTES_MAX} bytes")
    return data


def decode_app_config(data: bytes) -> AppConfig:
    """The configuration that a document holds, or Malformed."""
    if len(data) > CONFIG_BYTES_MAX:
        raise Malformed(f"cfg:app has at most {CONFIG_BYTES_MAX} bytes")
    try:
        config = msgspec.json.decode(data, type=AppConfig)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Malformed(f"cfg:app is no configuration of Ledgerstone: {error}") from error
    if config.version != 1 or len(config.secrets) > SECRETS_MAX:
        raise Malformed("cfg:app has another version, or too many secrets")
    return config
