"""``RedisLists``: pushes messages to lists in Redis, which are the queues of the broker."""

from collections.abc import Mapping, Sequence
from typing import Any

from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from omni_jobs.errors import BrokerUnavailable, ConfigError

CONNECTION_OPTIONS: Mapping[str, Any] = {
    "socket_timeout": 5.0,  # seconds; a hung broker must not hold up a publisher for ever
    "socket_connect_timeout": 3.0,
    "socket_keepalive": True,
    "health_check_interval": 10,
    "max_connections": 64,
}
"""Options of redis-py for every connection to the broker."""

_UNAVAILABLE = (RedisError, OSError)


class RedisLists:
    """Pushes messages to the lists of one Redis. Safe for threads. Connects when it is first used."""

    def __init__(self, url: str, prefix: str) -> None:
        """Prepare to connect to ``url``. Keys begin with ``prefix``. Raises ConfigError for a URL that is not valid."""
        self._prefix = prefix
        try:
            self._redis = Redis.from_url(url, retry=Retry(NoBackoff(), 0), **CONNECTION_OPTIONS)
            self._redis.connection_pool.make_connection()  # connects to nothing, and refuses unknown options
        except (ValueError, TypeError, RedisError):
            raise ConfigError("redis-py does not take this URL", field="OMNI_JOBS_BROKER_URL") from None

    def push(self, name: str, messages: Sequence[bytes]) -> int:
        """Push messages to the list ``name`` with one command. Return its length then. Raises BrokerUnavailable.

        Celery's own way of sending would cost a third of a millisecond for each message.
        """
        key = self._prefix + name
        try:
            return int(self._redis.lpush(key, *messages))
        except _UNAVAILABLE:
            # A broker that was restarted may have closed the connection. Hints that come twice do no harm.
            try:
                return int(self._redis.lpush(key, *messages))
            except _UNAVAILABLE as error:
                raise BrokerUnavailable(f"the broker does not take hints: {error}") from error

    def length(self, name: str) -> int:
        """Return how many messages the list ``name`` has. Raises BrokerUnavailable."""
        try:
            return int(self._redis.llen(self._prefix + name))
        except _UNAVAILABLE as error:
            raise BrokerUnavailable(f"the broker does not answer: {error}") from error

    def close(self) -> None:
        """Close all connections to Redis."""
        self._redis.close()
