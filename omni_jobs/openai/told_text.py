"""``grown_text``: the text of a job as it grows, for a stream that cannot take back what it has told."""

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from typing import Final

from omni_jobs.errors import TextChanged
from omni_jobs.jobs import Glance
from omni_jobs.openai.followed_jobs import FollowedJobs
from omni_jobs.states import StageRunState
from omni_jobs.watch.new_text import NewText

MOST_CHARS: Final = 16_384
"""The characters that one event of a stream has at most."""


class ToldText:
    """The text that a client was told of one job, which comes from one attempt after the other."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._chars = 0
        self.attempt = 0
        self.seen = 0  # the characters of the attempt's text that were compared with what was told, or told
        self.is_whole = False  # the attempt has succeeded, and its text was seen to the end

    def begin(self, attempt: int) -> None:
        """Go over to an attempt, which writes its text from the beginning."""
        if attempt != self.attempt:
            self.attempt, self.seen, self.is_whole = attempt, 0, False
            self._parts = ["".join(self._parts)]

    def add(self, new: str) -> str:
        """Return what of the attempt's next text was not told yet. Raises TextChanged where it differs from what was.

        ``new`` begins with the character ``seen``.
        """
        known = min(len(new), self._chars - self.seen)
        if known and self._parts[0][self.seen : self.seen + known] != new[:known]:
            raise TextChanged
        self.seen += len(new)
        rest = new[known:]
        if rest:
            self._parts.append(rest)
            self._chars += len(rest)
        return rest

    def add_whole(self, text: str) -> str:
        """Return what of the job's whole text was not told yet. Raises TextChanged if it begins otherwise."""
        self.begin(self.attempt + 1)
        rest = self.add(text)
        if self.seen < self._chars:
            raise TextChanged
        return rest


async def grown_text(jobs: FollowedJobs, job_id: str, stage: str | None, told: ToldText) -> AsyncGenerator[str, None]:
    """Yield what the text of a job's ``stage`` has grown by, in parts, and add it to ``told``, until the job has ended.

    The first is "", once the job is watched. It ends for all reasons for which ``Watch.changes`` ends, and raises
    TextChanged where an attempt writes another text than was told. ``stage`` None: no text is told.
    """
    texts = NewText(jobs.jobs, jobs.watch, job_id)
    async with aclosing(jobs.changes(job_id)) as changes:
        glance = await anext(changes, None)
        yield ""
        while glance is not None:
            for part in parts_of(await _new_text(glance, stage, told, texts)):
                yield part
            if glance.state.is_final:
                return
            glance = await anext(changes, None)


async def _new_text(glance: Glance, stage: str | None, told: ToldText, texts: NewText) -> str:
    """Return the text that a glance shows, as far as it was not told."""
    run = next((run for run in glance.runs if run.stage == stage), None)
    if run is None or not run.attempt:
        return ""
    told.begin(run.attempt)
    if told.is_whole:
        return ""
    has_succeeded = run.state is StageRunState.SUCCEEDED
    new = told.add(await texts.since(told.seen, run, has_succeeded=has_succeeded))
    told.is_whole = has_succeeded
    return new


def parts_of(text: str, most: int = MOST_CHARS) -> Iterator[str]:
    """Yield a text in parts of ``most`` characters, the last one shorter."""
    for start in range(0, len(text), most):
        yield text[start : start + most]
