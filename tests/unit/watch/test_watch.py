"""Who watches jobs: what each is told, how the database is polled for all, and when they are let go."""

import asyncio
import itertools
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import aclosing

import pytest
import pytest_asyncio

from omni_jobs.errors import DatabaseUnavailable, ServerBusy
from omni_jobs.jobs import Glance, RunGlance, TextPiece, WantedText
from omni_jobs.states import JobState, StageRunState
from omni_jobs.watch.watch import Watch

LONG_S = 60.0  # a wait that is not let go lasts longer than the tests may


class Jobs:
    """The jobs, all in progress at first, and the polls for them."""

    def __init__(self) -> None:
        self.states: dict[str, JobState] = {}
        self.texts: dict[str, str] = {}
        self.gone: set[str] = set()
        self.away = self.broken = self.takes_no_writes = self.pieces_are_away = False
        self.polls: list[tuple[list[str], set[str]]] = []
        self.polled = threading.Event()
        self.noted: list[list[str]] = []
        self.asked_for: list[list[str]] = []

    def glances(self, job_ids: Sequence[str], with_runs: Collection[str]) -> Mapping[str, Glance]:
        self.polls.append((list(job_ids), set(with_runs)))
        self.polled.set()
        if self.broken:
            raise RuntimeError("a bug")
        if self.away:
            raise DatabaseUnavailable("away")
        return {
            job_id: Glance(self.state(job_id), (self.run(job_id),) if job_id in with_runs else ())
            for job_id in set(job_ids) - self.gone
        }

    def watch(self, job_ids: Collection[str]) -> None:
        if self.takes_no_writes:
            raise DatabaseUnavailable("full")
        self.noted += [sorted(job_ids)]

    def ask_for(self, job_ids: Sequence[str]) -> None:
        if self.takes_no_writes:
            raise DatabaseUnavailable("full")
        self.asked_for += [list(job_ids)]

    def text_pieces(self, wanted: Sequence[WantedText]) -> list[TextPiece]:
        if self.pieces_are_away:
            raise DatabaseUnavailable("away")
        return [TextPiece(1, 1, 0, self.texts[each.job_id]) for each in wanted]

    def state(self, job_id: str) -> JobState:
        return self.states.get(job_id, JobState.IN_PROGRESS)

    def run(self, job_id: str) -> RunGlance:
        text = self.texts.get(job_id, "")
        progress = f'{{"done": {len(text)}, "total": null, "unit": "tokens", "text": "{text}", "chars": {len(text)}}}'
        return RunGlance(1, "say", StageRunState.RUNNING, 1, progress)

    def end(self, *job_ids: str) -> None:
        self.states |= dict.fromkeys(job_ids, JobState.COMPLETED)

    async def poll(self) -> None:
        """Return after a poll that began after this call."""
        for _ in range(2):  # the first may have begun before
            self.polled.clear()
            await asyncio.to_thread(self.polled.wait, LONG_S)


class Client:
    """A connection of ``omni_jobs.http.places``, as far as a watch knows it."""

    def __init__(self) -> None:
        self.has_left = False
        self.when_left: Callable[[], object] | None = None
        self.tenant = self.in_place_of = None
        self.holder = ""

    def is_slow(self) -> bool:
        return False

    def close(self) -> None:
        raise NotImplementedError

    def end_request(self) -> None:
        raise NotImplementedError


@pytest.fixture
def jobs() -> Jobs:
    return Jobs()


@pytest_asyncio.fixture
async def watch(jobs: Jobs) -> AsyncIterator[Watch]:
    watch = Watch(jobs)
    yield watch
    watch.release()


@pytest.fixture
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A poll or a note that has failed is soon tried again."""
    monkeypatch.setattr("omni_jobs.watch.watch._LONGEST_PAUSE_S", 0.05)
    monkeypatch.setattr("omni_jobs.watch.watch_notes._AGAIN_S", 0.05)


async def next_of(changes: AsyncGenerator[Glance, None]) -> Glance | None:
    """The next glance; None at the end."""
    return await asyncio.wait_for(anext(changes, None), 30)


# The end of a job


async def test_each_wait_ends_with_its_own_job(jobs: Jobs, watch: Watch) -> None:
    first, again, second = (
        asyncio.create_task(watch.until_ended(job_id, LONG_S)) for job_id in ("job-1", "job-1", "job-2")
    )
    await jobs.poll()
    assert not any(wait.done() for wait in (first, again, second))
    jobs.end("job-1")
    await asyncio.wait_for(asyncio.gather(first, again), 30)
    await jobs.poll()
    assert not second.done()
    jobs.gone.add("job-2")
    await asyncio.wait_for(second, 30)


async def test_no_wait_ends_with_another_state(jobs: Jobs, watch: Watch) -> None:
    jobs.states["job-1"] = JobState.QUEUED
    wait = asyncio.create_task(watch.until_ended("job-1", LONG_S))
    for state in (JobState.IN_PROGRESS, JobState.CANCELLING):
        await jobs.poll()
        jobs.states["job-1"] = state
    await jobs.poll()
    assert not wait.done()
    jobs.states["job-1"] = JobState.CANCELLED
    assert await asyncio.wait_for(wait, 30)


async def test_all_are_served_by_one_poll(jobs: Jobs, watch: Watch) -> None:
    requests = [asyncio.create_task(watch.until_ended(f"job-{n % 10}", LONG_S)) for n in range(100)]
    await jobs.poll()
    assert jobs.polls[-1] == ([f"job-{n}" for n in range(10)], set())
    jobs.end(*(f"job-{n}" for n in range(10)))
    await asyncio.wait_for(asyncio.gather(*requests), 30)


async def test_the_time_is_up(watch: Watch) -> None:
    assert await asyncio.wait_for(watch.until_ended("job-1", 0.01), 30)
    assert not watch._watchers


# Changes


async def test_the_job_comes_first_then_each_change_then_the_end(jobs: Jobs, watch: Watch) -> None:
    changes = watch.changes("job-1", watch.reserve(), with_runs=True)
    jobs.texts["job-1"] = "a"
    assert await next_of(changes) == Glance(JobState.IN_PROGRESS, (jobs.run("job-1"),))
    pending = asyncio.create_task(next_of(changes))
    await jobs.poll()
    assert not pending.done()
    jobs.texts["job-1"] = "ab"
    glance = await pending
    assert glance is not None
    progress = glance.runs[0].progress
    assert progress is not None
    assert (progress.text, progress.done) == ("ab", 2)
    jobs.end("job-1")
    glance = await next_of(changes)
    assert glance is not None
    assert glance.state is JobState.COMPLETED
    assert await next_of(changes) is None
    assert not watch._watchers


async def test_stage_runs_are_read_of_those_jobs_alone_of_which_somebody_wants_them(jobs: Jobs, watch: Watch) -> None:
    states, also_runs = watch.changes("job-1", watch.reserve()), watch.changes("job-1", watch.reserve(), with_runs=True)
    other = watch.changes("job-2", watch.reserve())
    assert [len(glance.runs) for glance in await asyncio.gather(*map(anext, (states, also_runs, other)))] == [0, 1, 0]
    assert jobs.polls[-1] == (["job-1", "job-2"], {"job-1"})
    pending = asyncio.create_task(next_of(states))
    jobs.texts["job-1"] = "a"
    assert await next_of(also_runs) == Glance(JobState.IN_PROGRESS, (jobs.run("job-1"),))
    await jobs.poll()
    assert not pending.done()  # what it does not see has not changed for it
    jobs.states["job-1"] = JobState.CANCELLING
    assert await pending == Glance(JobState.CANCELLING)
    await also_runs.aclose()
    await other.aclose()
    await jobs.poll()
    assert jobs.polls[-1] == (["job-1"], set())


async def test_who_is_slow_to_take_what_changed_gets_the_newest(jobs: Jobs, watch: Watch) -> None:
    changes, other = watch.changes("job-1", watch.reserve(), with_runs=True), watch.changes("job-2", watch.reserve())
    await asyncio.gather(next_of(changes), next_of(other))
    for text in ("a", "ab", "abc"):
        jobs.texts["job-1"] = text
        await jobs.poll()
    assert await next_of(changes) == Glance(JobState.IN_PROGRESS, (jobs.run("job-1"),))
    jobs.texts["job-1"] = "abcd"
    await jobs.poll()
    jobs.end("job-1")
    await jobs.poll()
    jobs.states["job-1"] = JobState.QUEUED  # its user has retried it: that is another watch's
    await jobs.poll()
    glance = await next_of(changes)
    assert glance is not None
    assert glance.state is JobState.COMPLETED
    assert await next_of(changes) is None


async def test_what_has_ended_is_polled_no_more_though_nobody_has_taken_the_end(jobs: Jobs, watch: Watch) -> None:
    slow, other = watch.changes("job-1", watch.reserve()), watch.changes("job-2", watch.reserve())
    await asyncio.gather(next_of(slow), next_of(other))
    jobs.end("job-1")
    await jobs.poll()
    await jobs.poll()
    assert jobs.polls[-1] == (["job-2"], set())
    await slow.aclose()


async def test_changes_end_with_a_job_that_is_deleted(jobs: Jobs, watch: Watch) -> None:
    changes = watch.changes("job-1", watch.reserve())
    await next_of(changes)
    jobs.gone.add("job-1")
    assert await next_of(changes) is None


# Who leaves, and a database that does not answer


@pytest.mark.parametrize("taken", [0, 1])
async def test_a_client_that_leaves_frees_its_place(jobs: Jobs, watch: Watch, taken: int) -> None:
    client = Client()
    changes = watch.changes("job-1", watch.reserve(connection=client), with_runs=True)
    for _ in range(taken):
        await next_of(changes)
    pending = asyncio.create_task(next_of(changes))
    async with asyncio.timeout(30):
        while client.when_left is None:
            await asyncio.sleep(0)
    client.when_left()
    assert await asyncio.wait_for(pending, 30) is None
    assert not watch._watchers
    assert client.when_left is None
    client.has_left = True
    assert await next_of(watch.changes("job-1", watch.reserve(connection=client))) is None
    assert not await watch.until_ended("job-1", LONG_S, connection=client)


async def test_a_job_is_polled_no_more_once_its_request_is_cancelled(jobs: Jobs, watch: Watch) -> None:
    left = asyncio.create_task(watch.until_ended("job-1", LONG_S))
    await jobs.poll()
    left.cancel()
    with pytest.raises(asyncio.CancelledError):
        await left
    async with aclosing(watch.changes("job-2", watch.reserve(), with_runs=True)) as changes:
        await next_of(changes)
    stays = asyncio.create_task(watch.until_ended("job-3", LONG_S))
    await jobs.poll()
    assert jobs.polls[-1] == (["job-3"], set())
    jobs.end("job-3")
    await asyncio.wait_for(stays, 30)


@pytest.mark.parametrize("fault", ["away", "broken"])
@pytest.mark.usefixtures("short_pauses")
async def test_a_poll_that_fails_ends_no_wait_and_no_stream(jobs: Jobs, watch: Watch, fault: str) -> None:
    changes = watch.changes("job-1", watch.reserve(), with_runs=True)
    assert await next_of(changes) == Glance(JobState.IN_PROGRESS, (jobs.run("job-1"),))
    setattr(jobs, fault, True)
    pending = asyncio.create_task(next_of(changes))
    wait = asyncio.create_task(watch.until_ended("job-1", LONG_S))
    await jobs.poll()
    await jobs.poll()
    assert not pending.done()
    assert not wait.done()
    setattr(jobs, fault, False)
    jobs.end("job-1")
    assert await asyncio.wait_for(wait, 30)
    glance = await pending
    assert glance is not None
    assert glance.state is JobState.COMPLETED


@pytest.mark.usefixtures("short_pauses")
async def test_while_the_database_is_away_a_wait_ends_in_time_and_a_client_may_leave(jobs: Jobs, watch: Watch) -> None:
    jobs.away = True
    client = Client()
    pending = asyncio.create_task(next_of(watch.changes("job-1", watch.reserve(connection=client))))
    await jobs.poll()
    assert await asyncio.wait_for(watch.until_ended("job-1", 0.01), 30)
    assert client.when_left is not None
    client.when_left()
    assert await asyncio.wait_for(pending, 30) is None
    assert not watch._watchers


@pytest.mark.usefixtures("short_pauses")
async def test_a_database_that_takes_no_writes_ends_no_wait(
    jobs: Jobs, watch: Watch, caplog: pytest.LogCaptureFixture
) -> None:
    jobs.takes_no_writes = True
    changes = watch.changes("job-1", watch.reserve(), with_runs=True)
    await next_of(changes)
    for text in ("a", "ab"):
        jobs.texts["job-1"] = text
        assert await next_of(changes) == Glance(JobState.IN_PROGRESS, (jobs.run("job-1"),))
    jobs.takes_no_writes = False
    async with asyncio.timeout(30):
        while not (jobs.noted and jobs.asked_for):
            await jobs.poll()
    assert (jobs.noted, jobs.asked_for) == ([["job-1"]], [["job-1"]])
    assert len([each for each in caplog.records if each.levelname == "ERROR"]) == 2
    jobs.end("job-1")
    assert await next_of(changes) is not None


@pytest.mark.usefixtures("short_pauses")
async def test_a_text_that_a_failed_poll_has_not_read_is_read_by_the_next(jobs: Jobs, watch: Watch) -> None:
    changes = watch.changes("job-1", watch.reserve(), with_runs=True)
    jobs.texts["job-1"] = "He"
    await next_of(changes)
    jobs.pieces_are_away = True
    jobs.texts["job-1"] = "Hello"
    pending = asyncio.create_task(next_of(changes))
    await jobs.poll()
    await jobs.poll()
    assert not pending.done()
    jobs.pieces_are_away = False
    assert await pending == Glance(JobState.IN_PROGRESS, (jobs.run("job-1"),))
    text = watch.text_of(1)
    assert text is not None
    assert text.since(0) == "Hello"


async def test_a_release_lets_all_go_and_nobody_watches_again(jobs: Jobs, watch: Watch) -> None:
    requests = [asyncio.create_task(watch.until_ended(f"job-{n}", LONG_S)) for n in range(3)]
    changes = watch.changes("job-3", watch.reserve(), with_runs=True)
    await next_of(changes)
    watch.release()
    await asyncio.wait_for(asyncio.gather(*requests), 30)
    assert await next_of(changes) is None
    assert not await watch.until_ended("job-4", LONG_S)
    assert await next_of(watch.changes("job-4", watch.reserve())) is None


# How often, and how many


@pytest.mark.parametrize(
    ("took_s", "pause_s"), [(0.001, 0.05), (0.02, 0.2), (1000.0, 1.0)], ids=["quick", "slow", "very slow"]
)
async def test_the_pause_grows_with_the_cost_of_a_poll_but_not_for_ever(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch, took_s: float, pause_s: float
) -> None:
    pauses: list[float] = []
    sleep = asyncio.sleep

    of_this_test = asyncio.get_running_loop()

    async def noted(seconds: float) -> None:
        if asyncio.get_running_loop() is not of_this_test:  # a server's that other tests share
            await sleep(seconds)
            return
        pauses.append(seconds)
        await sleep(0)

    monkeypatch.setattr("omni_jobs.watch.watch.asyncio.sleep", noted)
    times = itertools.count()
    watch = Watch(jobs, clock=lambda: next(times) * took_s)
    wait = asyncio.create_task(watch.until_ended("job-1", LONG_S))
    await asyncio.wait_for(jobs.poll(), 30)
    watch.release()
    assert await asyncio.wait_for(wait, 30)
    assert pauses[0] == 0.05
    assert pauses[1] == pytest.approx(pause_s)


async def test_watchers_are_bounded_in_all_and_for_each_tenant(jobs: Jobs) -> None:
    watch = Watch(jobs, most=3, most_per_tenant=2)
    going = [asyncio.create_task(watch.until_ended("job-1", LONG_S, "a")) for _ in range(2)]
    await asyncio.sleep(0)
    assert not await asyncio.wait_for(watch.until_ended("job-1", LONG_S, "a"), 30)
    with pytest.raises(ServerBusy):
        watch.reserve("a")
    going.append(asyncio.create_task(watch.until_ended("job-1", LONG_S, "b")))
    await asyncio.sleep(0)
    for tenant in ("c", None):
        assert not await asyncio.wait_for(watch.until_ended("job-1", LONG_S, tenant), 30)
        with pytest.raises(ServerBusy):
            watch.reserve(tenant)
    going[0].cancel()
    await asyncio.wait(going[:1])
    going[0] = asyncio.create_task(watch.until_ended("job-1", LONG_S, "a"))  # its place is free again
    await asyncio.sleep(0)
    assert not going[0].done()
    jobs.end("job-1")
    assert await asyncio.wait_for(asyncio.gather(*going), 30) == [True] * 3
    assert not watch._of_tenants
    assert not watch._places
    assert not watch._watchers


async def test_a_place_is_kept_from_one_job_to_the_next(jobs: Jobs) -> None:
    watch = Watch(jobs, most=1)
    with watch.reserve() as place:
        assert not await watch.until_ended("job-1", LONG_S)
        jobs.end("job-1")
        assert await watch.until_all_ended(["job-1"], LONG_S, place)
        assert not await watch.until_ended("job-1", LONG_S)
        jobs.end("job-2")
        assert await watch.until_all_ended(["job-1", "job-2"], LONG_S, place)
    assert await watch.until_ended("job-1", LONG_S)


async def test_a_wait_for_many_jobs_ends_with_the_last_or_in_time(jobs: Jobs, watch: Watch) -> None:
    with watch.reserve() as place:
        wait = asyncio.create_task(watch.until_all_ended(["job-1", "job-2"], LONG_S, place))
        jobs.end("job-1")
        await jobs.poll()
        assert not wait.done()
        jobs.end("job-2")
        assert await asyncio.wait_for(wait, 30)
        assert await watch.until_all_ended(["job-2", "job-3"], 0.01, place)


async def test_what_is_watched_is_asked_for_again_and_again(jobs: Jobs) -> None:
    now = [1000.0]
    watch = Watch(jobs, clock=lambda: now[0])
    wait = asyncio.create_task(watch.until_ended("job-1", LONG_S))
    await jobs.poll()
    assert jobs.asked_for == [["job-1"]]
    now[0] += 20.0
    await jobs.poll()
    assert jobs.asked_for == [["job-1"]] * 2
    watch.release()
    await asyncio.wait_for(wait, 30)
