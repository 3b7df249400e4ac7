"""``Link``: an http or https URL that a stranger named, read strictly, so that no two readers can differ about it."""

import re
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address

from omni_jobs.fetch.addresses import Address
from omni_jobs.fetch.failures import Blame, FetchFailed
from omni_jobs.servers import check_host

_MOST_CHARACTERS = 8192
_DEFAULT_PORTS = {"http": 80, "https": 443}
_URL = re.compile(
    r"(?P<scheme>https?)://(?P<host>\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::(?P<port>[0-9]{1,5}))?"
    r"(?P<path>/[!-\[\]-~]*|\?[!-\[\]-~]*)?",
    re.IGNORECASE | re.ASCII,  # else a Kelvin sign is a k
)
_LIKE_A_NUMBER = re.compile(r"(?:.*\.)?(?:[0-9]+|0x[0-9a-f]*)")  # what C's libraries read as one


@dataclass(frozen=True, slots=True)
class Link:
    """Where a URL leads.

    scheme   http or https
    host     a name in lower case, or an address without brackets
    address  the host, where it is an address
    target   path and query, as they are sent
    """

    scheme: str
    host: str
    address: Address | None
    port: int
    target: str

    @classmethod
    def parse(cls, url: str) -> "Link":
        """Return a URL's link; what stands behind a # is dropped.

        Raises FetchFailed, which does not show the URL, for another scheme, a user name, a host that is written as a
        number or is none, and characters that a URL has not.
        """
        if len(url) > _MOST_CHARACTERS:
            raise _refused(f"the URL has more than {_MOST_CHARACTERS} characters")
        found = _URL.fullmatch(url.partition("#")[0])
        if found is None:
            raise _refused(_what_is_wrong(url))
        scheme = found["scheme"].lower()
        host = found["host"].lower().removesuffix(".")
        try:
            host = check_host(host)
        except ValueError:
            raise _refused("the URL's host is neither a name nor an address as one writes it") from None
        address = _address_of(host)
        if address is None and _LIKE_A_NUMBER.fullmatch(host):
            raise _refused("the URL's host is neither a name nor an address as one writes it")
        port = int(found["port"]) if found["port"] else _DEFAULT_PORTS[scheme]
        path = found["path"] or "/"
        return cls(scheme, host, address, port, path if path.startswith("/") else f"/{path}")

    @property
    def authority(self) -> str:
        """The host with its port, as the header Host has it."""
        host = f"[{self.host}]" if isinstance(self.address, IPv6Address) else self.host
        return host if self.port == _DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"


def _address_of(host: str) -> Address | None:
    for kind in (IPv4Address, IPv6Address):
        try:
            return kind(host)
        except ValueError:
            continue
    return None


def _what_is_wrong(url: str) -> str:
    scheme, separator, rest = url.partition("://")
    if not separator or scheme.lower() not in _DEFAULT_PORTS:
        return "the URL is neither http://… nor https://…"
    if not re.fullmatch(r"[!-\[\]-~]*", url):
        return "the URL has a space, a backslash or a character beyond ASCII: write it as %… or xn--…"
    if "@" in re.split(r"[/?#]", rest, maxsplit=1)[0]:
        return "the URL has a user name or a password"
    return "the URL's host is neither a name nor an address as one writes it"


def _refused(reason: str) -> FetchFailed:
    return FetchFailed(reason, Blame.LINK)
