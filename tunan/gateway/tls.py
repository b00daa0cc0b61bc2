"""Certificates: the gateway's own, and what it shows to and expects of replicas and etcd."""

import ssl
import stat
from pathlib import Path

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
        _refuse_endless(cert, key, ca)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(cert, key)
        if ca:
            context.load_verify_locations(ca)
    except (OSError, ssl.SSLError) as error:
        raise UsageError(f"gateway.tls_cert_file {cert}: {_reason(error)}") from None


def replica_context(settings: Gateway) -> ssl.SSLContext | None:
    """How replicas at https:// are checked; None: as the system does. Raises `UsageError`."""
    ca, cert = settings.replica_ca_file, settings.replica_cert_file
    return client_context(ca, cert, "gateway.replica_ca_file, replica_cert_file")


def client_context(ca: Path | None, cert: Path | None, keys: str) -> ssl.SSLContext | None:
    """For connections from here; None: as the system does.

    Raises `UsageError` that names `keys`, the settings that the files are from.
    """
    if ca is None and cert is None:
        return None
    try:
        _refuse_endless(ca, cert)
        context = ssl.create_default_context(cafile=ca)
        if cert:
            context.load_cert_chain(cert)
    except (OSError, ssl.SSLError) as error:
        raise UsageError(f"{keys}: {_reason(error)}") from None
    return context


def _refuse_endless(*files: Path | None) -> None:
    """Raises `OSError`, or `UsageError` for a device or a pipe.

    OpenSSL reads a file to its end, and uvicorn opens it once more.
    """
    for file in files:
        if file and not stat.S_ISREG(file.stat().st_mode):
            raise UsageError(f"{file}: not a regular file, so no certificate or key is in it")


def _reason(error: OSError | ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLError) and "PEM lib" in str(error):  # OpenSSL says no more
        return "it or its key file holds nothing in PEM form"
    return (error.strerror or str(error)).strip()
