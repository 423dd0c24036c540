"""Schnorr signatures."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgerstone.errors import SignatureInvalid
from ledgerstone.signing import schnorr

SIGNED = [
    (
        "0000000000000000000000000000000000000000000000000000000000000003",
        "F9308A019258C31049344F85F89D5229B531C845836F99B08601F113BCE036F9",
        "0000000000000000000000000000000000000000000000000000000000000000",
        "0000000000000000000000000000000000000000000000000000000000000000",
        (
            "E907831F80848D1069A5371B402410364BDF1C5F8307B0084C55F1CE2DCA8215"
            "25F66A4A85EA8B71E482A74F382D2CE5EBEEE8FDB2172F477DF4900D310536C0"
        ),
    ),
    (
        "B7E151628AED2A6ABF7158809CF4F3C762E7160F38B4DA56A784D9045190CFEF",
        "DFF1D77F2A671C5F36183726DB2341BE58FEAE1DA2DECED843240F7B502BA659",
        "0000000000000000000000000000000000000000000000000000000000000001",
        "243F6A8885A308D313198A2E03707344A4093822299F31D0082EFA98EC4E6C89",
        (
            "6896BD60EEAE296DB48A229FF71DFE071BDE413E6D43F917DC8DCF8C78DE3341"
            "8906D11AC976ABCCB20B091292BFF4EA897EFCB639EA871CFA95F6DE339E4B0A"
        ),
    ),
    (
        "C90FDAA22168C234C4C6628B80DC1CD129024E088A67CC74020BBEA63B14E5C9",
        "DD308AFEC5777E13121FA72B9CC1B7CC0139715309B086C960E18FD969774EB8",
        "C87AA53824B4D7AE2EB035A2B5BBBCCC080E76CDC6D1692C4B0B62D798E6D906",
        "7E2D58D8B3BCDF1ABADEC7829054F90DDA9805AAB56C77333024B9D0A508B75C",
        (
            "5831AAEED7B44BB74E5EAB94BA9D4294C49BCF2A60728D8B4C200F50DD313C1B"
            "AB745879A5AD954A72C45A91C3A51D3C7ADEA98D82F8481E0E1E03674A6F3FB7"
        ),
    ),
    (
        "0B432B2677937381AEF05BB02A66ECD012773062CF3FA2549E44F58ED2401710",
        "25D1DFF95105F5253C4022F628A996AD3A0D95FBF21D468A1B33F8C160D8F517",
        "FFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFF",
        "FFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFF",
        (
            "7EB0509757E246F19449885651611CB965ECC1A187DD51B64FDA1EDC9637D5EC"
            "97582B9CB13DB3933705B32BA982AF5AF25FD78881EBB32771FC5922EFC66EA3"
        ),
    ),
]
"""Secret key, public key, randomness, hash and signature: the published vectors of BIP340."""

VERIFIED = (
    "D69C3509BB99E412E68B0FE8544E72837DFA30746D8BE2AA65975F29D22DC7B9",
    "4DF3C3F68FCC83B27E9D42C90431A72499F17875C81A599B566C9889B9696703",
    (
        "00000000000000000000003B78CE563F89A0ED9414F5AA28AD0D96D6795F9C63"
        "76AFB1548AF603B3EB45C9F8207DEE1060CB71C04E80F593060B07D28308D7F4"
    ),
)
NOT_ON_THE_CURVE = "EEFDEA4CDB677750A420FEE807EACF21EB9898AE79B9768766E4FAA04A2D4A34"
ODD_NONCE = (
    "FFF97BD5755EEEA420453A14355235D382F6472F8568A18B2F057A1460297556"
    "3CC27944640AC607CD107AE10923D9EF7A73C643E166BE5EBEAFA34B1AC553E2"
)
PRIME = "FFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEFFFFFC2F"
ORDER = "FFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141"
SECRET = bytes.fromhex(SIGNED[1][0])
KEY = schnorr.parse_public_key(bytes.fromhex(SIGNED[1][1]))
HASH = bytes.fromhex(SIGNED[1][3])
SIGNATURE = bytes.fromhex(SIGNED[1][4])


@pytest.mark.parametrize("vector", SIGNED, ids=range(len(SIGNED)))
def test_published_signatures(vector: tuple[str, ...]) -> None:
    """Signing gives the published signature, and it is verified by the published key."""
    secret, key, randomness, signed, signature = map(bytes.fromhex, vector)

    assert schnorr.public_key(secret) == key
    assert schnorr.sign(secret, signed, randomness=randomness) == signature
    schnorr.verify(schnorr.parse_public_key(key), signed, signature)


def test_a_published_signature_without_its_secret() -> None:
    """A signature whose nonce begins with zeros is verified."""
    key, signed, signature = map(bytes.fromhex, VERIFIED)

    schnorr.verify(schnorr.parse_public_key(key), signed, signature)


@pytest.mark.parametrize(
    "signature",
    [
        bytes.fromhex(ODD_NONCE),
        bytes.fromhex(PRIME) + SIGNATURE[32:],
        SIGNATURE[:32] + bytes.fromhex(ORDER),
        SIGNATURE[:32] + bytes(32),
        bytes(64),
        SIGNATURE[32:] + SIGNATURE[:32],
    ],
    ids=["odd nonce", "r = p", "s = n", "s = 0", "zeros", "swapped"],
)
def test_published_forgeries(signature: bytes) -> None:
    """Signatures that BIP340 refuses are SignatureInvalid."""
    with pytest.raises(SignatureInvalid, match="not the key's"):
        schnorr.verify(KEY, HASH, signature)


@given(secret=st.integers(1, int(ORDER, 16) - 1), signed=st.binary(min_size=32, max_size=32))
def test_what_is_signed_is_verified(secret: int, signed: bytes) -> None:
    """A signature is verified by its key over its hash, and by nothing else."""
    key = schnorr.public_key(secret.to_bytes(32, "big"))

    signature = schnorr.sign(secret.to_bytes(32, "big"), signed)

    schnorr.verify(key, signed, signature)
    with pytest.raises(SignatureInvalid):
        schnorr.verify(key, bytes([signed[0] ^ 1]) + signed[1:], signature)
    with pytest.raises(SignatureInvalid):
        schnorr.verify(key, signed, bytes([signature[0] ^ 1]) + signature[1:])


def test_compressed_keys() -> None:
    """A key of 33 bytes is its x-only key, whatever its sign."""
    for sign in (b"\2", b"\3"):
        assert schnorr.parse_public_key(sign + KEY) == KEY


@pytest.mark.parametrize(
    "wrong",
    [
        b"",
        KEY[:31],
        b"\x00" + KEY,
        b"\x04" + KEY,
        KEY + b"\x00",
        b"\x02" * 34,
        b"\x04" + KEY * 2,
        bytes.fromhex(NOT_ON_THE_CURVE),
        bytes.fromhex(PRIME),
        bytes(32),
    ],
    ids=lambda data: f"{len(data)} bytes",
)
def test_keys_that_are_none(wrong: bytes) -> None:
    """A key of a wrong length, or one that is no point of the curve, is SignatureInvalid."""
    with pytest.raises(SignatureInvalid):
        schnorr.parse_public_key(wrong)


def test_wrong_lengths() -> None:
    """Hashes, signatures, secrets and randomness of other lengths are SignatureInvalid."""
    for signed in (b"", HASH[:31], HASH + b"\0"):
        with pytest.raises(SignatureInvalid, match="a hash has 32 bytes"):
            schnorr.verify(KEY, signed, SIGNATURE)
        with pytest.raises(SignatureInvalid, match="a hash has 32 bytes"):
            schnorr.sign(SECRET, signed)
    for signature in (b"", SIGNATURE[:63], SIGNATURE + b"\0"):
        with pytest.raises(SignatureInvalid, match="a signature has 64 bytes"):
            schnorr.verify(KEY, HASH, signature)
    with pytest.raises(SignatureInvalid, match="randomness"):
        schnorr.sign(SECRET, HASH, randomness=b"x")


@pytest.mark.parametrize("wrong", [b"", bytes(32), bytes.fromhex(ORDER), SECRET[:31]], ids=repr)
def test_secrets_that_are_none(wrong: bytes) -> None:
    """Zero, the order of the curve and other lengths are no secret keys."""
    with pytest.raises(SignatureInvalid, match="secret key"):
        schnorr.public_key(wrong)
