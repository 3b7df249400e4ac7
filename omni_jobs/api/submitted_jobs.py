"""``SubmittedJobs``: the jobs that one request has submitted and waits for, and its answer.

answer(read) → the answer that ``read`` makes of the completed jobs, in time
stream(stream) → the answer that streams them
"""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from fastapi import Response

from omni_jobs.api.artifact_answer import artifact_of
from omni_jobs.api.event_stream import answer_with
from omni_jobs.api.services import Services
from omni_jobs.errors import Gone, OmniJobsError, ServerBusy, StillRunning
from omni_jobs.jobs import FirstTry, StoredArtifact
from omni_jobs.openai.client_names import in_client_names
from omni_jobs.openai.followed_jobs import FollowedJobs
from omni_jobs.openai.job_errors import JobFailure, check_completed, made_once
from omni_jobs.openai.stream import ClientStream
from omni_jobs.views import JobView


@dataclass(slots=True, kw_only=True)
class SubmittedJobs(FollowedJobs):
    """The jobs that one request has submitted.

    ignored    the names of what is ignored of the request, which each answer names in ``X-Ignored``
    has_key    whether the same request, sent again, gives these jobs again
    first_try  what stands for the client's own key, where it gave none
    within_s   for how long an answer may wait
    """

    ignored: Sequence[str]
    has_key: bool
    first_try: FirstTry | None
    services: Services
    within_s: float
    _is_answered: bool = field(default=False, init=False)
    _stream: ClientStream | None = field(default=None, init=False)

    async def answer(self, read: Callable[[Sequence[JobView]], Response]) -> Response:
        """Return what ``read`` makes of the jobs once they have completed. It is called on a thread.

        Raises JobFailure for a job that has not completed, also where one goes on after the time for which the
        server or the client waits, and where an error follows that must not make the client submit again. Raises
        ServerBusy where the server stops, and the client may send its request again.
        """
        with self._answering():
            with self.reserve() as place:
                await self.watch.until_all_ended(self.ids, self.within_s, place)
            try:
                answer = await self.on_artifact_thread(lambda: read(self._completed()))
            except JobFailure as failure:
                may_repeat = self.watch.is_released and self.has_key and not self.has_left
                if may_repeat and isinstance(failure.error, StillRunning):
                    raise ServerBusy("the server stops: send the request again, to get the same job") from None
                raise
        return self._noted(answer)

    async def answer_now(self, work: Awaitable[Response]) -> Response:
        """Return the answer that ``work`` makes of the jobs as they are. Raises what ``answer`` does."""
        with self._answering():
            return self._noted(await work)

    async def stream(self, stream: ClientStream, ping: Callable[[], str] | None = None) -> Response:
        """Return the answer that streams these events, with a ``ping`` as in ``answer_with``.

        Raises JobFailure for an error that comes before the first.
        """
        with self._answering():
            answer = await answer_with(stream.events(), ping)
        self._stream = stream
        return self._noted(answer)

    def leave_unless_told(self) -> None:
        """Note that the client has left, unless it was told all: the jobs are cancelled if nobody asks for them.

        Call it once the request is over.
        """
        stream, self._stream = self._stream, None  # which holds these jobs: the two would wait for the collector
        is_told = self._is_answered if stream is None else stream.has_ended
        if not is_told:
            self.services.request_notes.leave(self.ids, self.first_try)

    async def end_try(self) -> None:
        """Note that the client has its answer, so that a request that comes later is none of its repetitions."""
        if self.first_try is not None and not self.has_left:
            self.services.request_notes.end(self.first_try)

    def made(self, job: JobView, modality: str) -> StoredArtifact:
        """Return the artifact that a completed job has made of an output. Call this on a thread.

        Raises Gone once the artifact's time to live is over.
        """
        artifact = artifact_of(self.services, job, modality, self.tenant)
        if artifact is None:
            raise Gone(f"the {modality} of job {job.id} is not kept any longer")
        return artifact

    @contextmanager
    def _answering(self) -> Iterator[None]:
        """Context manager: an error in the block is the job's, and names the client's field.

        The client has its answer then, unless it has left a job that goes on.
        """
        try:
            with in_client_names(self.name_of), made_once(self.ids[0], has_key=self.has_key):
                yield
        except JobFailure as failure:
            self._is_answered = not (self.has_left and isinstance(failure.error, StillRunning))
            raise
        except OmniJobsError:
            self._is_answered = True
            raise
        self._is_answered = True

    def _noted(self, answer: Response) -> Response:
        if self.ignored:
            answer.headers["X-Ignored"] = ", ".join(dict.fromkeys(self.ignored))
        return answer

    def _completed(self) -> list[JobView]:
        jobs = [self.see(job_id) for job_id in self.ids]
        for job in jobs:
            check_completed(job)
        return jobs


def named_after(jobs: SubmittedJobs, answer: Response) -> Response:
    """Return the answer, which names its one job in ``X-Job-Id``, because its body has no place for it."""
    answer.headers["X-Job-Id"] = jobs.ids[0]
    return answer
