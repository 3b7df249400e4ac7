"""Why a server's certificate is refused, in words that name the setting to look at.

Each library tells of it in its own way, some by the text of an error alone. Whoever connects to a server hands what was
raised to ``refusal``, and gets a sentence for those who run the system.
"""

import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from omni_jobs.errors import ConfigError
from omni_jobs.servers import without_user

_EXPIRED: Final = 10  # these numbers are OpenSSL's X509_V_ERR_…, which Python's ssl gives as verify_code
_NOT_YET_VALID: Final = 9
_UNKNOWN_AUTHORITY: Final = frozenset({2, 18, 19, 20, 21, 27})
_OTHER_NAME: Final = frozenset({62, 64})
_NO_TLS: Final = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "UNKNOWN_PROTOCOL", "HTTP_REQUEST")
_MOST_ERRORS: Final = 12
_HANDSHAKE_S: Final = 3.0


def refusal(error: BaseException, *, url: str, setting: str, trust: str) -> str | None:
    """Return why this side of a connection refused the server, and what to do; None if the error is another.

    ``url`` is the server's, shown without user, password and query. ``setting`` holds it. ``trust``: what names the
    file of trusted authorities, such as ``AWS_CA_BUNDLE``.
    """
    place = without_user(url).partition("?")[0]
    for each in _chain(error):
        if isinstance(each, ssl.SSLCertVerificationError):
            why = _why(each.verify_code, each.verify_message, setting, trust)
            return f"the certificate of {place} is refused: {why}"
        if isinstance(each, ValueError) and "doesn't match" in str(each):  # urllib3's CertificateError
            return f"the certificate of {place} is refused: {_other_name(str(each), setting)}"
        if isinstance(each, ssl.SSLError) and each.reason is not None:
            if each.reason in _NO_TLS:
                return f"{place} does not speak TLS: correct {setting}, or the server"
            return f"{place} and this side find no TLS together: {each.reason.replace('_', ' ').lower()}"
        if isinstance(each, ssl.SSLEOFError | ssl.SSLZeroReturnError):
            return f"{place} ended the handshake of TLS: it may want a certificate of this side, or speak no TLS"
    return None


def _why(code: int, message: str, setting: str, trust: str) -> str:
    if code == _EXPIRED:
        return "it has expired; give the server a new one; nothing here needs a restart for it"
    if code == _NOT_YET_VALID:
        return "its time has not begun; compare the clocks of both hosts"
    if code in _OTHER_NAME:
        return _other_name(message, setting)
    if code in _UNKNOWN_AUTHORITY:
        return f"no authority that is trusted here has signed it; name the file of the one that has by {trust}"
    return message


def _other_name(message: str, setting: str) -> str:
    return f"it is for another host ({message.rstrip('.')}); write the name that it has into {setting}"


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and those of which it came, also where a library keeps them as a field."""
    seen: list[BaseException] = []
    waiting: list[Any] = [error]
    while waiting and len(seen) < _MOST_ERRORS:
        each = waiting.pop(0)
        if not isinstance(each, BaseException) or each in seen:
            continue
        seen.append(each)
        yield each
        fields = [getattr(each, "reason", None), getattr(each, "kwargs", {}).get("error")]  # urllib3's, botocore's
        waiting += [each.__cause__, each.__context__, *fields, *each.args]


def check_trusted(path: str | Path, *, field: str) -> None:
    """Raise ConfigError, naming the setting ``field``, unless a file holds certificates of authorities (PEM)."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cafile=path)
    except ssl.SSLError:
        raise ConfigError(f"{path} holds no certificates in PEM", field=field) from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}", field=field) from None


def check_readable(path: str | Path, *, field: str) -> None:
    """Raise ConfigError, naming the setting ``field``, unless this process may read a file."""
    try:
        Path(path).open("rb").close()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}", field=field) from None


def handshake(host: str, port: int, *, ca_file: str | None, preface: bytes = b"") -> dict[str, Any]:
    """Begin TLS with a server as its clients do, and return its certificate, as ``ssl.SSLSocket.getpeercert``.

    ``preface`` is sent first, and answered by a byte, as PostgreSQL does. ``ca_file``: None for the system's
    authorities. Raises OSError; ssl.SSLCertVerificationError says what is wrong with the certificate.
    """
    context = ssl.create_default_context(cafile=ca_file)
    with socket.create_connection((host, port), timeout=_HANDSHAKE_S) as connected:
        if preface:
            connected.sendall(preface)
            connected.recv(1)
        with context.wrap_socket(connected, server_hostname=host) as secured:
            return dict(secured.getpeercert() or {})
