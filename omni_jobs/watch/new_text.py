"""``NewText``: what a stage run has written since a reader looked last, as it grows and once it is whole."""

from anyio.to_thread import run_sync

from omni_jobs.jobs import Jobs, RunGlance, WantedText
from omni_jobs.watch.texts import SeenText
from omni_jobs.watch.watch import Watch


class NewText:
    """Reads the texts of one job, which is watched with its stage runs. For one event loop."""

    def __init__(self, jobs: Jobs, watch: Watch, job_id: str) -> None:
        self._jobs = jobs
        self._watch = watch
        self._job_id = job_id

    async def since(self, offset: int, run: RunGlance, *, has_succeeded: bool) -> str:
        """Return the text of the glance's attempt from the character ``offset`` on, as far as it is written.

        ``has_succeeded``: the stage run has, and the text is whole.
        """
        if has_succeeded:
            return await run_sync(self._rest, offset, run)
        text = self._watch.text_of(run.id)
        return text.since(offset) if text is not None and text.attempt == run.attempt else ""

    def _rest(self, offset: int, run: RunGlance) -> str:
        """Return the text of a stage run that has succeeded from the character ``offset`` on.

        Its result has it, or else its pieces have, if the job's modalities do not name the text.
        """
        if (made := self._jobs.made_text(run.id)) is not None:
            return made[offset:]
        text = SeenText(run.attempt)
        for piece in self._jobs.text_pieces([WantedText(self._job_id, run.id, run.attempt, 0)]):
            text.add(piece.start, piece.text)
        return text.since(offset)
