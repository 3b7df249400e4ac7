"""An authority that signs certificates for servers of the tests, right ones and wrong ones."""

import ipaddress
import ssl
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_HOUR: Final = timedelta(hours=1)


@dataclass(frozen=True)
class Certificate:
    """A server's certificate and key, in files."""

    file: Path
    key_file: Path

    def context(self) -> ssl.SSLContext:
        """Return the TLS of a server with this certificate."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.file, self.key_file)
        return context


class Authority:
    """``file``: its own certificate, for those who trust it."""

    def __init__(self, directory: Path, name: str = "authority") -> None:
        self._directory = directory
        self._name = _common_name(name)
        self._key = ec.generate_private_key(ec.SECP256R1())
        own = _begun(self._name, self._key.public_key(), expires_in=48 * _HOUR)
        own = own.issuer_name(self._name).add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        own = own.add_extension(_usage(signs_certificates=True), critical=True)
        own = own.add_extension(x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False)
        self.file = directory / f"{name}.pem"
        self.file.write_bytes(own.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))

    def certificate(self, *names: str, expires_in: timedelta = 48 * _HOUR, file_name: str = "server") -> Certificate:
        """Sign a certificate for a server of these names and addresses; a negative time: one that has expired."""
        key = ec.generate_private_key(ec.SECP256R1())
        begun = _begun(_common_name(names[0]), key.public_key(), expires_in).issuer_name(self._name)
        begun = begun.add_extension(
            x509.SubjectAlternativeName([_general_name(name) for name in names]), critical=False
        )
        begun = begun.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        signed = begun.add_extension(authority, critical=False).sign(self._key, hashes.SHA256())
        made = Certificate(self._directory / f"{file_name}.pem", self._directory / f"{file_name}.key")
        made.key_file.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        made.key_file.chmod(0o600)
        made.file.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
        return made

    def server(self, name: str) -> ssl.SSLContext:
        """Return the TLS of a server of this name."""
        return self.certificate(name).context()


REFUSED: Final = {
    "another host": "it is for another host",
    "expired": "it has expired",
    "unknown authority": "no authority that is trusted here has signed it",
}
"""What may be wrong with a certificate → what our errors say of it."""


def presented(wrong: str | None, directory: Path) -> tuple[Certificate, Path]:
    """Return a certificate for localhost that is ``wrong`` in this way, and the file that its clients trust."""
    authority = Authority(directory)
    match wrong:
        case None:
            return authority.certificate("localhost"), authority.file
        case "another host":
            return authority.certificate("elsewhere.example"), authority.file
        case "expired":
            return authority.certificate("localhost", expires_in=-_HOUR), authority.file
        case _:
            return authority.certificate("localhost"), Authority(directory, "stranger").file


def _begun(name: x509.Name, key: ec.EllipticCurvePublicKey, expires_in: timedelta) -> x509.CertificateBuilder:
    ends = datetime.now(UTC) + expires_in
    begun = x509.CertificateBuilder().subject_name(name).public_key(key).serial_number(x509.random_serial_number())
    return begun.not_valid_before(min(ends, datetime.now(UTC)) - _HOUR).not_valid_after(ends)


def _common_name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )
