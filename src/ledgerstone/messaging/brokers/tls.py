"""What a destination's settings say of TLS, as a context of the standard library."""

from __future__ import annotations

import ssl
from typing import TypeVar

from ledgerstone.errors import BadInput
from ledgerstone.settings.messaging import DestinationSettings

C = TypeVar("C", bound=ssl.SSLContext)


def client_context(destination: str, settings: DestinationSettings, kind: type[C]) -> C:
    """A context that checks the certificate and the name of the server.

    - It trusts `ca_file`, or what the system trusts.
    - It shows `certificate_file` with `key_file`, if there is one.
    - BadInput names the file that cannot be used.
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
    # An error of TLS is one of the system too, and says less.
    why = error.strerror if not isinstance(error, ssl.SSLError) else "it holds no usable PEM"
    return BadInput(
        f"{setting} of the destination {destination} cannot be used: {file}: {why}",
        hint="give files in PEM format that this process may read; the key without a password",
    )
