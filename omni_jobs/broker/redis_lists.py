"""Redis as the broker uses it: lists that messages are pushed to, and counted in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from omni_jobs.errors import BrokerUnavailable, ConfigError

__all__ = ["CONNECTION_OPTIONS", "RedisLists"]

CONNECTION_OPTIONS: Mapping[str, Any] = {
    "socket_timeout": 5.0,  # a hung broker must not hold a publisher for ever
    "socket_connect_timeout": 3.0,
    "socket_keepalive": True,
    "health_check_interval": 10,
    "max_connections": 64,
}
"""Of redis-py: those of every connection to the broker."""

_UNAVAILABLE = (RedisError, OSError)


class RedisLists:
    """Safe for threads. Connects when it is first used."""

    def __init__(self, url: str) -> None:
        """Raises ConfigError for what is no URL of a Redis."""
        try:
            self._redis = Redis.from_url(url, retry=Retry(NoBackoff(), 0), **CONNECTION_OPTIONS)
            self._redis.connection_pool.make_connection()  # which connects to nothing, and takes no unknown option
        except (ValueError, TypeError, RedisError):
            raise ConfigError("redis-py does not take this URL", field="OMNI_JOBS_BROKER_URL") from None

    def push(self, key: str, messages: Sequence[bytes]) -> int:
        """How many messages the list holds then. Raises BrokerUnavailable.

        All in one command: Celery's own way of sending costs a third of a millisecond a message.
        """
        try:
            return int(self._redis.lpush(key, *messages))
        except _UNAVAILABLE:
            # It may have met a connection that a restarted broker had closed; hints that come twice do no harm.
            try:
                return int(self._redis.lpush(key, *messages))
            except _UNAVAILABLE as error:
                raise BrokerUnavailable(f"the broker does not take hints: {error}") from error

    def length(self, key: str) -> int:
        """Messages in the list. Raises BrokerUnavailable."""
        try:
            return int(self._redis.llen(key))
        except _UNAVAILABLE as error:
            raise BrokerUnavailable(f"the broker does not answer: {error}") from error

    def close(self) -> None:
        """Close all connections."""
        self._redis.close()
