"""The TLS settings of a destination as an SSL context of the standard library."""

from __future__ import annotations

import ssl
from typing import TypeVar

from ledgerstone.errors import BadInput
from ledgerstone.settings.messaging import DestinationSettings

C = TypeVar("C", bound=ssl.SSLContext)


def client_context(destination: str, settings: DestinationSettings, kind: type[C]) -> C:
    """An SSL context that checks the certificate and the host name of the server.

    - It trusts `ca_file`, or the certificates of the system.
    - It presents `certificate_file` with `key_file`, if they are set.
    - Raises BadInput with the name of a file that cannot be used.
    """
    context = kind(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if settings.ca_file is None:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    else:
        try:
            context.load_verify_locations(cafile=settings.ca_file)
        except OSError as error:
            raise _unusable(destination, "ca_file", settings.ca_file, error) from error
    if settings.certificate_file is not None:
        try:
            context.load_cert_chain(settings.certificate_file, settings.key_file)
        except OSError as error:
            file = settings.certificate_file
            raise _unusable(destination, "certificate_file", file, error) from error
    return context


def _unusable(destination: str, setting: str, file: str, error: OSError) -> BadInput:
    # An SSLError is an OSError too, but its strerror does not help.
    why = error.strerror if not isinstance(error, ssl.SSLError) else "it contains no usable PEM"
    return BadInput(
        f"{setting} of the destination {destination} cannot be used: {file}: {why}",
        hint="give readable files in PEM format; the key without a password",
    )
