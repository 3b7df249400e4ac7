"""``Guard``: which links are followed, by the setting ``OMNI_JOBS_FETCH``; it reads and writes nothing."""

from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network
from typing import Final

from omni_jobs.errors import ConfigError
from omni_jobs.fetch.addresses import Address, is_public
from omni_jobs.fetch.failures import Blame, FetchFailed
from omni_jobs.fetch.link import Link
from omni_jobs.settings import Settings

_WEB: Final = frozenset({80, 443})


@dataclass(frozen=True, slots=True)
class Guard:
    """Refuses links.

    hosts     the only hosts that are spoken to: a name, or ``*.name`` for all below it; None: any
    ports     the only ports
    networks  taken for the internet's as well. No setting and no request adds any: tests do, whose servers have
              loopback addresses
    """

    hosts: frozenset[str] | None = None
    ports: frozenset[int] = _WEB
    networks: tuple[IPv4Network | IPv6Network, ...] = ()

    @classmethod
    def of(cls, settings: Settings) -> "Guard | None":
        """Return the guard of the settings; None: nothing is fetched.

        Raises ConfigError for the setting ``hosts`` without hosts, and for hosts that no other setting reads.
        """
        if (settings.fetch == "hosts") != bool(settings.fetch_hosts):
            raise ConfigError("hosts needs OMNI_JOBS_FETCH_HOSTS, which nothing else reads", field="OMNI_JOBS_FETCH")
        if settings.fetch == "off":
            return None
        return cls(frozenset(settings.fetch_hosts)) if settings.fetch == "hosts" else cls()

    def check(self, link: Link) -> None:
        """Raise FetchFailed for a port or a host that is not spoken to."""
        if link.port not in self.ports:
            raise FetchFailed("the URL has another port than 80 and 443", Blame.LINK)
        if self.hosts is not None and not self._has(link.host):
            raise FetchFailed("the URL's host is none of those from which this server fetches", Blame.LINK)

    def _has(self, host: str) -> bool:
        labels = host.split(".")
        above = {f"*.{'.'.join(labels[at:])}" for at in range(1, len(labels))}
        return self.hosts is not None and not self.hosts.isdisjoint({host, *above})

    def check_addresses(self, addresses: Sequence[Address]) -> None:
        """Raise FetchFailed unless there are addresses and all of them are the internet's.

        One that is not makes the others doubtful, because the name's owner mixes them on purpose.
        """
        if not addresses or not all(self._is_public(address) for address in addresses):
            raise FetchFailed("the URL's host has no public address", Blame.LINK)

    def _is_public(self, address: Address) -> bool:
        return is_public(address) or any(address in network for network in self.networks)
