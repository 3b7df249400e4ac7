"""How each process connects to the broker: the URL, redis-py's options, and what its errors mean.

All connections are made of these: those that ring doorbells, those that count requests, and Celery's own.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

from omni_jobs.errors import BrokerUnavailable, ConfigError
from omni_jobs.settings import Settings
from omni_jobs.tls.certificates import check_readable, check_trusted, refusal

CONNECTION_OPTIONS: Mapping[str, Any] = {
    "socket_timeout": 5.0,  # seconds; a hung broker must not hold up a publisher for ever
    "socket_connect_timeout": 3.0,
    "socket_keepalive": True,
    "health_check_interval": 10,
    "max_connections": 64,
}
"""Options of redis-py for every connection to the broker that rings or takes doorbells."""

_FIELD: Final = "OMNI_JOBS_BROKER_URL"


def broker_url(settings: Settings) -> str:
    """Return the broker's URL as redis-py and kombu take it, with its password.

    Of ``rediss://`` it says that the certificate is verified, unless the setting says otherwise, because kombu verifies
    none where the URL has no option of TLS. Raises ConfigError for a file in it that cannot be used.
    """
    url = settings.broker_url.get_secret_value()
    parts = urlsplit(url)
    if parts.scheme != "rediss":
        return url
    options = parse_qs(parts.query)
    for path in options.get("ssl_ca_certs", ()):
        check_trusted(path, field=f"{_FIELD}, ssl_ca_certs")
    for name in ("ssl_certfile", "ssl_keyfile"):
        for path in options.get(name, ()):
            check_readable(path, field=f"{_FIELD}, {name}")
    if "ssl_cert_reqs" in options:
        return url
    return parts._replace(query="&".join(filter(None, (parts.query, "ssl_cert_reqs=required")))).geturl()


@contextmanager
def broker_errors(settings: Settings, problem: str) -> Iterator[None]:
    """Context manager: raises the errors of Redis in its block as BrokerUnavailable, which names the problem."""
    from redis.exceptions import RedisError  # redis takes long to load

    try:
        yield
    except (RedisError, OSError) as error:
        raise BrokerUnavailable(f"the broker {problem}", because=reason(settings, error)) from error


def reason(settings: Settings, error: Exception) -> str:
    """Return why a connection failed, in words for those who run the system."""
    refused = refusal(
        error,
        url=settings.broker_url.get_secret_value(),
        setting=_FIELD,
        trust=f"ssl_ca_certs in {_FIELD} (rediss://…?ssl_ca_certs=/path/to/ca.pem)",
    )
    return refused or str(error)


def unusable() -> ConfigError:
    """Return what to raise for a URL that redis-py refuses."""
    return ConfigError("redis-py does not take this URL", field=_FIELD)
