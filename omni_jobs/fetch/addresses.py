"""``is_public``: whether an address is one of the internet's, which everybody reaches alike.

An address of a private network, of this machine or of a cloud's own services is none, and neither is one that carries
an IPv4 address for a translator or a tunnel: who resolves it decides where it leads.
"""

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import Final

Address = IPv4Address | IPv6Address

# IANA's special-purpose registry, and what is no unicast.
_NOT_PUBLIC_4: Final = tuple(
    IPv4Network(network)
    for network in (
        "0.0.0.0/8",  # this network
        "10.0.0.0/8",
        "100.64.0.0/10",  # shared by a provider's customers; a cloud's metadata
        "127.0.0.0/8",
        "168.63.129.16/32",  # Azure's own services, at each of its machines
        "169.254.0.0/16",  # link-local; clouds' metadata
        "172.16.0.0/12",
        "192.0.0.0/24",
        "192.0.2.0/24",
        "192.88.99.0/24",  # relays of 6to4
        "192.168.0.0/16",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, and broadcast
    )
)
_UNICAST_6: Final = IPv6Network("2000::/3")  # all that is given to the internet's hosts so far
_NOT_PUBLIC_6: Final = tuple(
    IPv6Network(network)
    for network in (
        "2001::/23",  # protocols': Teredo, ORCHID, benchmarks
        "2001:db8::/32",
        "2002::/16",  # 6to4
        "3fff::/20",
    )
)


def is_public(address: Address) -> bool:
    """Return whether an address is one of the internet's."""
    if not address.is_global or address.is_multicast:  # what Python knows; it differs between its releases
        return False
    if isinstance(address, IPv4Address):
        return not any(address in network for network in _NOT_PUBLIC_4)
    is_unicast = address in _UNICAST_6 and address.scope_id is None
    return is_unicast and not any(address in network for network in _NOT_PUBLIC_6)
