"""TLS to an API server where many connections are opened: certificates are read once, handshakes are resumed.

A connection that urllib3 opens by itself reads the certificates anew, and both sides sign: 2.7 ms of CPU here and 1.9
ms at the API server (KWOK on two cores, client certificates). One that goes on with the session of an earlier one (RFC
8446, section 2.2) takes 0.6 and 0.4 ms. The server proves with it that it is the one that was verified then.
"""

import ssl
from contextlib import suppress
from pathlib import Path
from typing import Any


class ResumingContext(ssl.SSLContext):
    """The TLS settings of a kubeconfig, and the session that the next connection resumes. Make one with `of`."""

    _session: ssl.SSLSession | None = None
    _authorities: tuple[Any, Any] = (None, None)  # a file's name, text
    _certificate: tuple[Any, Any] = (None, None)  # the files' names: certificates, key
    _seen: tuple[int, ...] = ()

    @classmethod
    def of(cls, settings: Any) -> "ResumingContext":
        """Return the context of a `kubernetes.client.Configuration`; raises OSError for files that cannot be read."""
        context = cls(ssl.PROTOCOL_TLS_CLIENT)
        context._certificate = (settings.cert_file, settings.key_file)
        if not settings.verify_ssl:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        elif settings.ssl_ca_cert or settings.ca_cert_data:
            context._authorities = (settings.ssl_ca_cert, settings.ca_cert_data)
        else:
            context.load_default_certs()
        context._read()
        return context

    def wrap_socket(self, sock: Any, *args: Any, **options: Any) -> ssl.SSLSocket:
        """Shake hands, by the session if there is one; files that changed since (certificates are renewed) are read."""
        with suppress(OSError):  # being renewed just now: the old ones, once more
            self._read()
        options["session"] = self._session
        return super().wrap_socket(sock, *args, **options)

    def remember(self, connection: Any) -> None:
        """Keep the session of a connection on which an answer was read: a server sends it behind the handshake."""
        if isinstance(connection, ssl.SSLSocket) and not connection.session_reused:
            self._session = connection.session

    def _read(self) -> None:
        names = [name for name in (self._authorities[0], *self._certificate) if name]
        seen = tuple(Path(name).stat().st_mtime_ns for name in names)
        if seen == self._seen and seen:
            return
        authorities, text = self._authorities
        if authorities or text:
            self.load_verify_locations(cafile=authorities, cadata=text)
        certificate, key = self._certificate
        if certificate:
            self.load_cert_chain(certificate, key)
        self._seen, self._session = seen, None
