"""``Contained``: no exception of a model's code ends more than its stage run."""

import asyncio

from omni_jobs.errors import ModelError


class Contained:
    """A context manager that raises ModelError in place of SystemExit, KeyboardInterrupt, GeneratorExit, StopIteration.

    asyncio lets the first two end the event loop, and waits for ever for a thread that raises the last. CancelledError
    and all other exceptions pass. Each stage run enters several, so this is no generator, which would take thrice as
    long.
    """

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Let an exception pass, or raise another in its place."""
        if error is None or isinstance(error, asyncio.CancelledError):
            return
        if isinstance(error, StopIteration) or not isinstance(error, Exception):
            raise escaped(error) from error


def escaped(error: BaseException) -> ModelError:
    """Return the error of a stage run whose model's code raised an exception that no model's code may raise."""
    return ModelError(f"the model's code raised {error!r}, which may end a process and never a stage run")
