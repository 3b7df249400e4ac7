"""``RedisLists``: Redis as the broker uses it, lists to which messages are pushed."""

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
    """The lists of one Redis. Safe for threads. Connects when it is first used."""

    def __init__(self, url: str) -> None:
        """``url``: that of the Redis. Raises ConfigError for one that redis-py does not accept."""
        try:
            self._redis = Redis.from_url(url, retry=Retry(NoBackoff(), 0), **CONNECTION_OPTIONS)
            self._redis.connection_pool.make_connection()  # connects to nothing, and refuses unknown options
        except (ValueError, TypeError, RedisError):
            raise ConfigError("redis-py does not take this URL", field="OMNI_JOBS_BROKER_URL") from None

    def push(self, key: str, messages: Sequence[bytes]) -> int:
        """Push messages with one command. Return how many the list has then. Raises BrokerUnavailable.

        Celery's own way of sending would cost a third of a millisecond for each message.
        """
        try:
            return int(self._redis.lpush(key, *messages))
        except _UNAVAILABLE:
            # A broker that was restarted may have closed the connection. Hints that come twice do no harm.
            try:
                return int(self._redis.lpush(key, *messages))
            except _UNAVAILABLE as error:
                raise BrokerUnavailable(f"the broker does not take hints: {error}") from error

    def length(self, key: str) -> int:
        """Return how many messages the list has. Raises BrokerUnavailable."""
        try:
            return int(self._redis.llen(key))
        except _UNAVAILABLE as error:
            raise BrokerUnavailable(f"the broker does not answer: {error}") from error

    def close(self) -> None:
        """Close all connections."""
        self._redis.close()
