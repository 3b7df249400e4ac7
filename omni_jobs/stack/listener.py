"""The socket on which the embedded stack's API listens, and its URL, with IPv4 and IPv6."""

import socket


def open_listener(host: str, port: int) -> socket.socket:
    """Return a socket that listens on a host's name or address; 0 takes a free port, an empty host every address.

    A name that has addresses of both kinds takes that of IPv4. Raises OSError.
    """
    found = socket.getaddrinfo(host or "0.0.0.0", port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)  # noqa: S104
    family, _, _, _, address = min(found, key=lambda each: each[0] != socket.AF_INET)
    return socket.create_server(address, family=family, backlog=1024)


def base_url(host: str, port: int) -> str:
    """Return the URL of a server at an address; one of IPv6 stands in brackets."""
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"
