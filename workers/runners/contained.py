"""``contained``: no exception of a model's code ends more than its stage run."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from omni_jobs.errors import ModelError


@contextmanager
def contained() -> Iterator[None]:
    """Raise ModelError in place of SystemExit, KeyboardInterrupt, GeneratorExit and StopIteration.

    asyncio lets the first two end the event loop, and waits for ever for a thread that raises the last. CancelledError
    and all other exceptions pass.
    """
    try:
        yield
    except StopIteration as error:
        raise escaped(error) from error
    except (asyncio.CancelledError, Exception):
        raise
    except BaseException as error:
        raise escaped(error) from error


def escaped(error: BaseException) -> ModelError:
    """Return the error of a stage run whose model's code raised an exception that no model's code may raise."""
    return ModelError(f"the model's code raised {error!r}, which may end a process and never a stage run")
