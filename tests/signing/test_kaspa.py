"""Kaspa's addresses, derivation paths and amounts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgerstone.errors import AddressInvalid, BadInput, DerivationPathInvalid
from ledgerstone.signing import kaspa
from ledgerstone.signing.kaspa import Address, AddressKind, Network

KEY = "dff1d77f2a671c5f36183726db2341be58feae1da2deced843240f7b502ba659"
SCRIPT = "5d597f201ead11daa0687185c579efd702e288d5bd72b6b21238a4ecb52d288a"

PUBLISHED = [
    ("kaspa:qr0lr4ml9fn3chekrqmjdkergxl93l4wrk3dankcgvjq776s9wn9jkdskewva", Network.MAINNET, 0),
    ("kaspa:qypdluwh0u4xw8zlxcvrwfkmydqmuk874cw69hkwmppjgrmm2q46vkgl9zsrch2", Network.MAINNET, 1),
    ("kaspa:ppw4jleqr6k3rk4qdpcct3tealts9c5g6k7h9d4jzgu2fm94955g5gj9dcf8e", Network.MAINNET, 8),
    ("kaspatest:qr0lr4ml9fn3chekrqmjdkergxl93l4wrk3dankcgvjq776s9wn9jhtkdksae", Network.TESTNET, 0),
    (
        "kaspatest:qypdluwh0u4xw8zlxcvrwfkmydqmuk874cw69hkwmppjgrmm2q46vkg538dsecl",
        Network.TESTNET,
        1,
    ),
    ("kaspadev:qr0lr4ml9fn3chekrqmjdkergxl93l4wrk3dankcgvjq776s9wn9j6n4stne3", Network.DEVNET, 0),
    ("kaspadev:qypdluwh0u4xw8zlxcvrwfkmydqmuk874cw69hkwmppjgrmm2q46vkgqa7lrf4l", Network.DEVNET, 1),
    ("kaspasim:qr0lr4ml9fn3chekrqmjdkergxl93l4wrk3dankcgvjq776s9wn9jeadh9sjw", Network.SIMNET, 0),
    ("kaspasim:qypdluwh0u4xw8zlxcvrwfkmydqmuk874cw69hkwmppjgrmm2q46vkg383u346d", Network.SIMNET, 1),
]
"""Made by Kaspa's own library."""
PAYLOADS = {0: KEY, 1: "02" + KEY, 8: SCRIPT}
MAINNET = PUBLISHED[0][0]

addresses = st.sampled_from(AddressKind).flatmap(
    lambda kind: st.builds(
        Address,
        network=st.sampled_from(Network),
        kind=st.just(kind),
        payload=st.binary(min_size=kaspa.PAYLOAD_BYTES[kind], max_size=kaspa.PAYLOAD_BYTES[kind]),
    )
)


@pytest.mark.parametrize(("text", "network", "version"), PUBLISHED)
def test_published_addresses(text: str, network: Network, version: int) -> None:
    """Addresses of every network and version are parsed, and spelled as Kaspa's library does."""
    payload = bytes.fromhex(PAYLOADS[version])
    address = Address(network=network, kind=AddressKind(version), payload=payload)

    assert kaspa.parse_address(text) == address
    assert str(address) == text


@given(addresses)
def test_what_is_spelled_is_parsed(address: Address) -> None:
    """Every address is parsed from its text."""
    assert kaspa.parse_address(str(address)) == address


@given(address=addresses, data=st.data())
def test_typing_errors(address: Address, data: st.DataObject) -> None:
    """Up to three wrong characters behind the prefix are noticed."""
    text = list(str(address))
    first = text.index(":") + 1
    places = st.lists(st.integers(first, len(text) - 1), min_size=1, max_size=3, unique=True)
    for place in data.draw(places):
        others = [char for char in kaspa.ALPHABET if char != text[place]]
        text[place] = data.draw(st.sampled_from(others))

    with pytest.raises(AddressInvalid):
        kaspa.parse_address("".join(text))


def spelled(prefix: str, groups: list[int]) -> str:
    """Any groups, with the right checksum."""
    checksum = kaspa._checksum(prefix, [*groups, *[0] * 8])
    tail = [checksum >> 5 * at & 31 for at in reversed(range(8))]
    return f"{prefix}:{''.join(kaspa.ALPHABET[group] for group in groups + tail)}"


GROUPS = kaspa._regroup(b"\0" + bytes(32), 8, 5)


@pytest.mark.parametrize(
    "wrong",
    [
        "",
        "kaspa",
        "kaspa:",
        "kaspa:qqqqqqqq",
        "kaspa:qqexample",
        MAINNET.upper(),
        MAINNET.replace("kaspa", "Kaspa"),
        "kaspa:" + MAINNET[6:].upper(),
        MAINNET[6:],
        f" {MAINNET}",
        f"{MAINNET}\n",
        MAINNET[:-1],
        f"{MAINNET}q",
        MAINNET.replace("kaspa:", "kaspatest:"),
        MAINNET.replace("kaspa:", "bitcoincash:"),
        MAINNET.replace("q", "b", 1),
        MAINNET.replace("q", "é", 1),
        MAINNET * 3,
        spelled("kaspa", []),
        spelled("kaspa", [0]),
        spelled("kaspa", GROUPS[:-1]),
        spelled("kaspa", [*GROUPS, 0]),
        spelled("kaspa", [*GROUPS[:-1], GROUPS[-1] | 1]),
        spelled("kaspa", kaspa._regroup(b"\2" + bytes(32), 8, 5)),
        spelled("kaspa", kaspa._regroup(b"\1" + bytes(32), 8, 5)),
        spelled("kaspa", kaspa._regroup(b"\x08" + bytes(33), 8, 5)),
    ],
)
def test_what_is_no_address(wrong: str) -> None:
    """Another prefix, case, length, version, padding or checksum is AddressInvalid."""
    with pytest.raises(AddressInvalid):
        kaspa.parse_address(wrong)


@given(st.text(max_size=80) | st.text(kaspa.ALPHABET, max_size=80).map("kaspa:{}".format))
def test_hostile_text(text: str) -> None:
    """Any text is an address that is spelled exactly so, or AddressInvalid."""
    try:
        address = kaspa.parse_address(text)
    except AddressInvalid:
        return

    assert str(address) == text


def test_an_address_of_a_wrong_length() -> None:
    """An address whose payload has another length cannot be spelled."""
    with pytest.raises(AddressInvalid):
        str(Address(network=Network.MAINNET, kind=AddressKind.PUBKEY, payload=b"x"))


@pytest.mark.parametrize(
    ("path", "index", "found"),
    [
        ("m/45'/111111'/0'/0/5", 5, 5),
        ("m/45'/111111'/0'/0/5", None, 5),
        ("", 5, 5),
        ("m/45'/111111'/0'/0/0", None, 0),
        ("m/45'/111111'/0'/0/2147483647", 2**31 - 1, 2**31 - 1),
    ],
)
def test_paths(path: str, index: int | None, found: int) -> None:
    """Path and index agree, or one of them says it alone."""
    assert kaspa.derivation_index(path, index) == found
    assert kaspa.derivation_path(found) == f"m/45'/111111'/0'/0/{found}"


@pytest.mark.parametrize(
    ("path", "index"),
    [
        ("", None),
        ("m/45'/111111'/0'/0/5", 6),
        ("m/45'/111111'/0'/0/05", None),
        ("m/45'/111111'/0'/0/05", 5),
        ("m/45'/111111'/0'/0/-1", None),
        ("m/45'/111111'/0'/0/5'", None),
        ("m/45'/111111'/0'/1/5", None),
        ("m/44'/111111'/0'/0/5", 5),
        ("m/45'/111111'/0'/0/", None),
        ("m/45'/111111'/0'/0/\u0665", None),
        ("m/45'/111111'/0'/0/5\n", None),
        ("m/45'/111111'/0'/0/2147483648", None),
        ("", 2**31),
        ("", -1),
    ],
)
def test_paths_that_are_refused(path: str, index: int | None) -> None:
    """Another path, a path and an index that differ, and neither are DerivationPathInvalid."""
    with pytest.raises(DerivationPathInvalid):
        kaspa.derivation_index(path, index)


@given(st.integers(0, 2**64 - 1))
def test_amounts_are_exact(sompi: int) -> None:
    """Every amount of sompi is spelled in KAS and read back without a rounding."""
    assert kaspa.parse_kas(kaspa.format_kas(sompi)) == sompi


@pytest.mark.parametrize(
    ("text", "sompi"),
    [
        ("0", 0),
        ("1", 100_000_000),
        ("1.5", 150_000_000),
        ("0.1", 10_000_000),
        ("0.00000001", 1),
        ("1.23456789", 123_456_789),
        ("184467440737.09551615", 2**64 - 1),
    ],
)
def test_amounts(text: str, sompi: int) -> None:
    """A KAS has 100,000,000 sompi."""
    assert kaspa.parse_kas(text) == sompi
    assert kaspa.format_kas(sompi) == text


@pytest.mark.parametrize(
    "wrong",
    [
        "",
        "-1",
        "+1",
        "1e3",
        "1.",
        ".5",
        "1.123456789",
        "01",
        "1,5",
        " 1",
        "1 ",
        "\u0661",
        "1_0",
        "nan",
        "184467440737.09551616",
        "9" * 5000,
    ],
)
def test_what_is_no_amount(wrong: str) -> None:
    """Signs, exponents, a ninth decimal and more than 64 bits are BadInput."""
    with pytest.raises(BadInput):
        kaspa.parse_kas(wrong)


def test_sums() -> None:
    """A volume ends at 64 bits; a larger sum is spelled as it is; no amount is negative."""
    assert kaspa.add_saturating(1, 2, 3) == 6
    assert kaspa.add_saturating(2**64 - 1, 1) == 2**64 - 1
    assert kaspa.format_kas(2**65) == "368934881474.19103232"
    with pytest.raises(BadInput):
        kaspa.format_kas(-1)
