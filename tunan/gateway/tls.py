"""Certificates: the gateway's own, and what it shows to and expects of replicas."""

import ssl

from tunan.config.deployment import Gateway
from tunan.errors import UsageError


def check_server_files(settings: Gateway) -> None:
    """Raises `UsageError` if the gateway cannot speak TLS with the files it is given."""
    cert, key, ca = settings.tls_cert_file, settings.tls_key_file, settings.tls_client_ca_file
    if cert is None:
        if key or ca:
            raise UsageError("gateway.tls_cert_file is missing beside the other tls_ files")
        return
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(cert, key)
        if ca:
            context.load_verify_locations(ca)
    except (OSError, ssl.SSLError) as error:
        raise UsageError(f"gateway.tls_cert_file {cert}: {_reason(error)}") from None


def replica_context(settings: Gateway) -> ssl.SSLContext | None:
    """How replicas at https:// are checked; None: as the system does. Raises `UsageError`."""
    ca, cert = settings.replica_ca_file, settings.replica_cert_file
    if ca is None and cert is None:
        return None
    try:
        context = ssl.create_default_context(cafile=ca)
        if cert:
            context.load_cert_chain(cert)
    except (OSError, ssl.SSLError) as error:
        raise UsageError(f"gateway.replica_ca_file, replica_cert_file: {_reason(error)}") from None
    return context


def _reason(error: OSError | ssl.SSLError) -> str:
    return (error.strerror or str(error)).strip()
