"""``close_pool``: closes the connections of an engine, also those that are in use, as soon as they come back."""

from sqlalchemy import Engine, event
from sqlalchemy.pool import ConnectionPoolEntry


def close_pool(engine: Engine) -> None:
    """Close an engine's connections. Those in use are closed when they come back. The engine may be used on.

    ``Engine.dispose`` alone would leave those to the garbage collector, because they come back to a pool that is gone.
    """
    pool = engine.pool
    engine.dispose()
    event.listen(pool, "checkin", _close)
    pool.dispose()  # of those that came back meanwhile


def _close(_: object, entry: ConnectionPoolEntry) -> None:
    entry.close()
