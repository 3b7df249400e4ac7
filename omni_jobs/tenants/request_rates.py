"""``RequestRates``: bounds the requests that a tenant sends in a minute, over all API servers.

The broker's Redis counts them, in a window that slides. While it is away each server counts alone, in memory.
"""

import logging
import time
from typing import Final

from limits import RateLimitItemPerMinute
from limits.aio.storage import MemoryStorage, RedisStorage
from limits.aio.strategies import SlidingWindowCounterRateLimiter
from limits.errors import StorageError
from redis.asyncio import ConnectionPool
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from omni_jobs.broker.connection import broker_url, reason
from omni_jobs.errors import TooManyRequests
from omni_jobs.settings import Settings

logger = logging.getLogger(__name__)

_WAIT_S: Final = 0.5  # for an answer of Redis
_AWAY_S: Final = 2.0  # after a failure Redis is left alone for so long


class RequestRates:
    """Counts the requests of tenants. For one event loop; ``close`` it."""

    def __init__(self, settings: Settings) -> None:
        """Connect to nothing yet. Raises ConfigError for a file in the broker's URL that cannot be used."""
        self._settings = settings
        url = broker_url(settings)
        self._connections = ConnectionPool.from_url(
            url, socket_timeout=_WAIT_S, socket_connect_timeout=_WAIT_S, retry=Retry(NoBackoff(), 0)
        )
        redis = RedisStorage(
            url,
            wrap_exceptions=True,
            implementation="redispy",
            key_prefix=f"{settings.broker_key_prefix}omni-jobs-rates",
            connection_pool=self._connections,  # type: ignore[arg-type]  # an option of redis-py's
        )
        self._shared = SlidingWindowCounterRateLimiter(redis)
        self._alone = SlidingWindowCounterRateLimiter(MemoryStorage())
        self._away_until = 0.0

    async def check(self, tenant: str, per_minute: int) -> None:
        """Count a request. Raises TooManyRequests if the tenant has sent ``per_minute`` in the last minute."""
        rate = RateLimitItemPerMinute(per_minute)
        if time.monotonic() >= self._away_until:
            try:
                await _check(self._shared, rate, tenant)
            except StorageError as error:
                self._away_until = time.monotonic() + _AWAY_S
                logger.warning(
                    "requests are counted in memory, because the broker is away: %s", reason(self._settings, error)
                )
            else:
                return
        await _check(self._alone, rate, tenant)

    async def close(self) -> None:
        """Close the connections to Redis."""
        await self._connections.aclose()


async def _check(limiter: SlidingWindowCounterRateLimiter, rate: RateLimitItemPerMinute, tenant: str) -> None:
    if not await limiter.hit(rate, tenant):
        window = await limiter.get_window_stats(rate, tenant)
        raise TooManyRequests(
            f"tenant {tenant} may send {rate.amount} requests a minute",
            retry_after_s=min(60, max(1, round(window.reset_time - time.time()))),
        )
