"""Kaspa: addresses, the derivation path of the group's keys, and amounts in sompi.

An address is `prefix:data`. The data are groups of five bits in the alphabet of bech32: a version
byte and its payload, then a checksum of eight groups, which also covers the prefix.
"""

from __future__ import annotations

import re
from enum import Enum

import msgspec

from ledgerstone.errors import AddressInvalid, BadInput, DerivationPathInvalid
from ledgerstone.signing.values import U64_MAX

ALPHABET = "qpzry9x8gf2tvdw0s3jn54khce6mua7l"
GENERATORS = (0x98F2BC8E61, 0x79B76D99E2, 0xF33E5FB3C4, 0xAE2EABE2A8, 0x1E4F43E470)
CHECKSUM_GROUPS = 8
GROUP_BITS = 5
ADDRESS_CHARS_MAX = 90
SOMPI_PER_KAS = 100_000_000
KAS_DECIMALS = 8
DERIVATION_INDEX_MAX = 2**31 - 1
"""Above it an index is a hardened one, which the path does not have."""

_KAS = re.compile(r"(0|[1-9][0-9]{0,11})(?:\.([0-9]{1,8}))?")
_PATH = re.compile(r"m/45'/111111'/0'/0/(0|[1-9][0-9]{0,9})")


class Network(Enum):
    """A network by its number in a group's configuration."""

    MAINNET = 0
    TESTNET = 1
    DEVNET = 2
    SIMNET = 3


PREFIXES: dict[Network, str] = {
    Network.MAINNET: "kaspa",
    Network.TESTNET: "kaspatest",
    Network.DEVNET: "kaspadev",
    Network.SIMNET: "kaspasim",
}


class AddressKind(Enum):
    """The kind of script that an address pays to, by its version byte."""

    PUBKEY = 0
    PUBKEY_ECDSA = 1
    SCRIPT_HASH = 8


PAYLOAD_BYTES: dict[AddressKind, int] = {
    AddressKind.PUBKEY: 32,
    AddressKind.PUBKEY_ECDSA: 33,
    AddressKind.SCRIPT_HASH: 32,
}


class Address(msgspec.Struct, frozen=True, kw_only=True):
    """An address; two addresses that are equal are paid by the same output."""

    network: Network
    kind: AddressKind
    payload: bytes

    def __str__(self) -> str:
        if len(self.payload) != PAYLOAD_BYTES[self.kind]:
            raise AddressInvalid(f"the payload has {len(self.payload)} bytes")
        prefix = PREFIXES[self.network]
        data = _regroup(bytes([self.kind.value]) + self.payload, 8, GROUP_BITS)
        checksum = _checksum(prefix, [*data, *[0] * CHECKSUM_GROUPS])
        groups = [checksum >> GROUP_BITS * at & 31 for at in reversed(range(CHECKSUM_GROUPS))]
        return f"{prefix}:{''.join(ALPHABET[group] for group in [*data, *groups])}"


def parse_address(text: str) -> Address:
    """The address that the text spells; AddressInvalid says what is wrong with it."""
    if len(text) > ADDRESS_CHARS_MAX:
        raise AddressInvalid(f"an address has at most {ADDRESS_CHARS_MAX} characters")
    prefix, colon, data = text.partition(":")
    network = next((network for network, name in PREFIXES.items() if name == prefix), None)
    if not colon or network is None:
        raise AddressInvalid(f"{text!r} does not begin with one of {', '.join(PREFIXES.values())}")
    groups = [ALPHABET.find(char) for char in data]
    if -1 in groups:
        raise AddressInvalid(f"{text!r} holds a character that no address has")
    if len(groups) <= CHECKSUM_GROUPS or _checksum(prefix, groups):
        raise AddressInvalid(f"{text!r} has a wrong checksum: it was mistyped or cut off")
    return _address(network, groups[:-CHECKSUM_GROUPS])


def _address(network: Network, groups: list[int]) -> Address:
    version, *payload = _regroup(groups, GROUP_BITS, 8)
    try:
        kind = AddressKind(version)
    except ValueError as error:
        raise AddressInvalid(f"{version} is no version of an address") from error
    if len(payload) != PAYLOAD_BYTES[kind]:
        raise AddressInvalid(f"an address of version {version} has no {len(payload)} bytes")
    return Address(network=network, kind=kind, payload=bytes(payload))


def _checksum(prefix: str, groups: list[int]) -> int:
    """0 for groups that end in their checksum; with zeros in its place, the checksum."""
    remainder = 1
    for group in [*(ord(char) & 31 for char in prefix), 0, *groups]:
        top = remainder >> 35
        remainder = (remainder & 0x07FFFFFFFF) << GROUP_BITS ^ group
        for bit, generator in enumerate(GENERATORS):
            remainder ^= generator if top >> bit & 1 else 0
    return remainder ^ 1


def _regroup(values: bytes | list[int], width: int, new_width: int) -> list[int]:
    """The same bits in groups of another width; narrower groups are padded with zeros."""
    bits = count = 0
    groups = []
    for value in values:
        bits = bits << width | value
        count += width
        while count >= new_width:
            count -= new_width
            groups.append(bits >> count)
            bits &= (1 << count) - 1
    if new_width < width:
        if count:
            groups.append(bits << new_width - count)
    elif bits or count >= width:
        raise AddressInvalid("an address ends in bits that belong to no byte")
    return groups


def derivation_path(index: int) -> str:
    """The path of the keys with an index."""
    if not 0 <= index <= DERIVATION_INDEX_MAX:
        raise DerivationPathInvalid(f"a derivation index is 0 to {DERIVATION_INDEX_MAX}: {index}")
    return f"m/45'/111111'/0'/0/{index}"


def derivation_index(path: str, index: int | None) -> int:
    """The index that path and index agree on; one of them may be missing (`""`, None)."""
    if index is not None:
        expected = derivation_path(index)
        if path not in {"", expected}:
            raise DerivationPathInvalid(f"index {index} has the path {expected}, not {path!r:.80}")
        return index
    found = _PATH.fullmatch(path)
    if found is None:
        raise DerivationPathInvalid(f"a path is {derivation_path(0)[:-1]}<index>, not {path!r:.80}")
    derivation_path(int(found[1]))
    return int(found[1])


def parse_kas(text: str) -> int:
    """The sompi of an amount in KAS with at most eight decimals, exactly."""
    found = _KAS.fullmatch(text)
    sompi = 0
    if found is not None:
        fraction = (found[2] or "").ljust(KAS_DECIMALS, "0")
        sompi = int(found[1]) * SOMPI_PER_KAS + int(fraction)
    if found is None or sompi > U64_MAX:
        raise BadInput(f"{text!r:.80} is no amount in KAS", hint="write it like 12.5")
    return sompi


def format_kas(sompi: int) -> str:
    """An amount in KAS without needless zeros; a sum of amounts may be beyond 64 bits."""
    if sompi < 0:
        raise BadInput(f"{sompi} sompi are less than nothing")
    whole, fraction = divmod(sompi, SOMPI_PER_KAS)
    return f"{whole}.{fraction:08}".rstrip("0").rstrip(".")


def add_saturating(*amounts: int) -> int:
    """The sum, or the largest amount of 64 bits: what the merge operator of the volume does."""
    return min(sum(amounts), U64_MAX)
