"""``Failures``: logs what fails of work that is done again and again, once in a row."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from omni_jobs.errors import OmniJobsError

logger = logging.getLogger(__name__)


class Failures:
    """The failures of one kind of work."""

    def __init__(self, work: str) -> None:
        """``work`` says what fails, at the beginning of a log message."""
        self._work = work
        self.has_failed = False  # the last time

    @contextmanager
    def logged(self) -> Iterator[None]:
        """A context manager that ends its block at an exception, which it logs unless the time before failed, too.

        A bug is logged with its trace: it must not end what is done again, because the next time may go well.
        """
        try:
            yield
        except Exception as error:
            if not self.has_failed:
                logger.error("%s: %s", self._work, error, exc_info=not isinstance(error, OmniJobsError))
            self.has_failed = True
        else:
            if self.has_failed:
                logger.info("%s: it goes well again", self._work)
            self.has_failed = False
