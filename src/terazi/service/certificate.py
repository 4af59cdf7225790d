"""The certificate of a service that speaks HTTPS, and its renewal while the service runs."""

import logging

from terazi.gateway.server import fingerprint, tls_context
from terazi.service.config import ServiceTable

_log = logging.getLogger(__name__)


class Certificate:
    """What the service is reached with: a certificate, or none.

    Args:
        table: as the service starts.

    Raises:
        UsageError: the files can't be used.
    """

    def __init__(self, table: ServiceTable) -> None:
        files = _files(table)
        #: For the gateway; None is plain HTTP.
        self.context = None if files is None else tls_context(*files)
        #: By which the local commands know it.
        self.fingerprint = None if files is None else fingerprint(files[0])

    def check(self, table: ServiceTable) -> None:
        """Whether ``follow`` would do.

        Raises:
            UsageError: the files can't be used.
        """
        if (files := _files(table)) is not None:
            tls_context(*files)

    def follow(self, table: ServiceTable) -> bool:
        """Show connections that come from now on what is in the files now; whether that is another certificate."""
        files = _files(table)
        if self.context is None or files is None:  # to begin or end HTTPS takes another socket
            return False
        before = self.fingerprint
        try:
            self.context.load_cert_chain(*files, password="")
            self.fingerprint = fingerprint(files[0])
        except (OSError, ValueError) as problem:  # they were good a moment ago; ssl.SSLError is an OSError
            _log.warning("the certificate %s could not be read again: %s", files[0], problem)
        return self.fingerprint != before


def _files(table: ServiceTable) -> tuple[str, str] | None:
    return (table.tls_cert, table.tls_key) if table.tls_cert and table.tls_key else None
