"""``network_of``: by what clients are told apart where their tenant is not known."""

import ipaddress

from starlette.requests import HTTPConnection

_IPV6_BITS = 64  # of an address; who has one has all that begin alike


def network_of(address: str) -> str:
    """Return the network of a client's address: that of the first 64 bits for IPv6, else the address itself."""
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return address  # of a Unix socket, or what a trusted proxy wrote
    if ip.version == 4 or ip.ipv4_mapped is not None:
        return str(ip if ip.version == 4 else ip.ipv4_mapped)
    return str(ipaddress.ip_network((ip.packed, _IPV6_BITS), strict=False))


def client_network(request: HTTPConnection) -> str:
    """Return the network of a request's client, which is "" for one without an address."""
    return network_of(request.client.host) if request.client else ""
