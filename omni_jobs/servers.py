"""``Server``: an OpenAI-compatible server that remote stages may use. Only settings name its URL and key.

    OMNI_JOBS_SERVERS='{"local": {"url": "http://127.0.0.1:8000/v1", "key_file": "/run/secrets/local-key"}}'

A stage config names a server by its name, so neither a job nor a stage config can send a request or a key elsewhere.
"""

import ipaddress
import re
from pathlib import Path
from typing import Annotated, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, SecretStr, field_validator, model_validator

from omni_jobs.errors import ConfigError

_MAX_KEY_CHARACTERS = 8192
_KEY = re.compile(rf"[\x21-\x7e]{{1,{_MAX_KEY_CHARACTERS}}}")
_NOT_A_KEY = f"not 1 to {_MAX_KEY_CHARACTERS} printable ASCII characters without a space"


_PLACE = re.compile(r"(?:[^@]*@)?(?P<host>\[[0-9A-Fa-f:.%a-z]+\]|[^\[\]:@]*)(?::[0-9]*)?")
_NAME = re.compile(r"(?!.{254})[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,62})(?:\.[A-Za-z0-9_][A-Za-z0-9_-]{0,62})*\.?")


def check_host(host: str) -> str:
    """Return a host's name or address without brackets. Raise ValueError, which does not show it, if it is neither."""
    is_bracketed = host.startswith("[") and host.endswith("]")
    plain = host[1:-1] if is_bracketed else host
    try:
        address = ipaddress.ip_address(plain)
    except ValueError:
        if is_bracketed or not _NAME.fullmatch(plain) or plain.rpartition(".")[2].isdecimal():
            raise ValueError("not a host's name or address") from None
    else:
        if is_bracketed and address.version == 4:
            raise ValueError("brackets are for IPv6 addresses")
    return plain


def check_base_url(url: str, *, may_have_user: bool = False) -> str:
    """Return a URL such as ``http://host[:port][/path]`` without slashes at its end, or one with https.

    Raise ValueError, which does not show it, for any other. An IPv6 address stands in brackets. ``may_have_user``: a
    user and a password may stand before the host.
    """
    if not url.isascii() or not url.isprintable() or " " in url or "\\" in url:
        raise ValueError("a base URL has no spaces, and no other characters than those of ASCII")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise ValueError("not a URL") from None
    place = _PLACE.fullmatch(parts.netloc)
    if parts.scheme not in ("http", "https") or not parts.hostname or place is None or port == 0:
        raise ValueError("not http://host[:port][/path], nor https://…")
    check_host(place["host"])
    if not may_have_user and "@" in parts.netloc:
        raise ValueError("no user, password or key stands in this URL")
    if parts.query or parts.fragment or url.endswith(("?", "#")):
        raise ValueError("a base URL has no query and no fragment")
    return url.rstrip("/")


BaseUrl = Annotated[str, AfterValidator(check_base_url)]
"""A base URL without a user, in a setting."""


def without_user(url: str) -> str:
    """Return a URL without the user and the password before its host, so that an error may show it."""
    scheme, separator, rest = url.partition("://")
    place, slash, path = rest.partition("/")
    return f"{scheme}{separator}{place.rpartition('@')[2]}{slash}{path}"


class Server(BaseModel):
    """A server's base URL, as OpenAI's clients take it, and what is needed to be let in.

    url       ``http://host:port/v1``; requests go to paths below it
    key       sent as a bearer token; or in ``key_file``, a file of one line, which is read when a worker starts
    ca_file   certificates (PEM) to trust in place of the system's, for a server with a private authority
    """

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    url: BaseUrl
    key: SecretStr | None = None
    key_file: Path | None = None
    ca_file: Path | None = None

    @field_validator("key")
    @classmethod
    def _is_key(cls, key: SecretStr | None) -> SecretStr | None:
        if key is not None and not _KEY.fullmatch(key.get_secret_value()):
            raise ValueError(_NOT_A_KEY)
        return key

    @model_validator(mode="after")
    def _has_one_key(self) -> Self:
        if self.key is not None and self.key_file is not None:
            raise ValueError("give key or key_file, not both")
        return self

    def read_key(self) -> SecretStr | None:
        """Return the key, from its file if it has one; None: the server wants none.

        Raises ConfigError, which never shows the key, for a file that cannot be read or holds something else.
        """
        if self.key_file is None:
            return self.key
        try:
            with self.key_file.open("rb") as file:
                content = file.read(_MAX_KEY_CHARACTERS + 3)
        except OSError as error:
            raise ConfigError(f"{self.key_file} cannot be read: {error.strerror}", field="key_file") from None
        text = content.decode("latin-1").rstrip("\r\n")
        if not _KEY.fullmatch(text):
            raise ConfigError(f"{self.key_file} has to hold one line, the key itself: {_NOT_A_KEY}", field="key_file")
        return SecretStr(text)

    def to_json(self) -> dict[str, str]:
        """Return the server as JSON, from which another process reads it, with the key in the clear if it has one."""
        files = {"key_file": self.key_file, "ca_file": self.ca_file}
        json = {"url": self.url, **{name: str(path.absolute()) for name, path in files.items() if path is not None}}
        return json if self.key is None else {**json, "key": self.key.get_secret_value()}
