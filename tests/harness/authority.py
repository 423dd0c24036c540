"""A private certificate authority, for tests of what speaks TLS."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

VALID_FOR = timedelta(days=1)


class PrivateAuthority:
    """An authority that nobody else trusts, its files in a folder of the test.

    - `ca_file` is what a client must trust.
    - `certificate` makes a certificate for names and addresses; its file holds the key too.
    """

    def __init__(self, folder: Path, name: str = "private authority") -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._subject = _named(name)
        basic = x509.BasicConstraints(ca=True, path_length=0)
        built = _begun(self._subject, self._subject, self._key.public_key())
        self._certificate = built.add_extension(basic, critical=True).sign(
            self._key, hashes.SHA256()
        )
        self.ca_file = folder / f"{name.replace(' ', '-')}.pem"
        self.ca_file.write_bytes(self._certificate.public_bytes(serialization.Encoding.PEM))

    def certificate(self, names: Sequence[str]) -> Path:
        """The file of a new certificate and its key, readable by a server of another user."""
        key = ec.generate_private_key(ec.SECP256R1())
        built = _begun(_named(names[0]), self._subject, key.public_key())
        others = x509.SubjectAlternativeName([_general(name) for name in names])
        signed = built.add_extension(others, critical=False).sign(self._key, hashes.SHA256())
        file = self._folder / f"{names[0]}.pem"
        file.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
            + signed.public_bytes(serialization.Encoding.PEM)
        )
        return file


def _begun(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - VALID_FOR)
        .not_valid_after(now + VALID_FOR)
    )


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])


def _general(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        return x509.DNSName(name)
