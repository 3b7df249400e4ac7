"""An authority that signs certificates for servers of the tests."""

import ssl
import subprocess
from pathlib import Path

_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
_SIGNED = ("-CA", "authority.pem", "-CAkey", "authority.key", "-CAcreateserial", "-days", "2", "-extfile", "names")


class Authority:
    """``file``: its own certificate, for those who trust it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.file = directory / "authority.pem"
        own = ("-keyout", "authority.key", "-out", "authority.pem", "-subj", "/CN=authority", "-days", "2")
        self._openssl("req", "-x509", *_KEY, *own)

    def server(self, name: str) -> ssl.SSLContext:
        """Return the TLS of a server of this name."""
        (self._directory / "names").write_text(f"subjectAltName=DNS:{name}\n")
        self._openssl("req", *_KEY, "-keyout", "server.key", "-out", "server.csr", "-subj", f"/CN={name}")
        self._openssl("x509", "-req", "-in", "server.csr", *_SIGNED, "-out", "server.pem")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self._directory / "server.pem", self._directory / "server.key")
        return context

    def _openssl(self, *words: str) -> None:
        subprocess.run(["openssl", *words], cwd=self._directory, check=True, capture_output=True)
