"""The policy of turns, played against a queue whose lowest turns are claimed first."""

import heapq
from collections import Counter, defaultdict
from itertools import count
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omni_jobs.jobs.order.turns import LAST_TURN, LOW_PACES, UNIT, Lines, next_turn
from omni_jobs.priority import Priority

HIGH, NORMAL, LOW = Priority.HIGH, Priority.NORMAL, Priority.LOW
WEIGHTS = (0.001, 0.5, 1.0, 3.0, 1000.0)


class Job(NamedTuple):
    turn: int
    number: int  # its age breaks ties
    tenant: str
    priority: Priority


class Queue:
    """What waits in one pipeline. Its tenants have weight 1 unless said otherwise."""

    def __init__(self, weights: dict[str, float] | None = None) -> None:
        self.weights = weights or {}
        self.lines: dict[str, Lines] = defaultdict(Lines)
        self.virtual_time = 0
        self.waiting: list[Job] = []
        self.numbers = count()

    def submit(self, tenant: str, priority: Priority = NORMAL, jobs: int = 1) -> Job:
        """Submit so many jobs, and return the last."""
        for _ in range(jobs):
            turn = next_turn(self.lines[tenant], self.virtual_time, priority, self.weights.get(tenant, 1.0))
            job = Job(turn, next(self.numbers), tenant, priority)
            heapq.heappush(self.waiting, job)
        return job

    def claim(self) -> Job:
        job = heapq.heappop(self.waiting)
        self.virtual_time = max(self.virtual_time, job.turn)
        return job

    def claims_until(self, job: Job) -> int:
        """Claim until it is this job's turn, and return how many went before it."""
        return next(n for n in count() if self.claim() == job)

    def pace(self, tenant: str, priority: Priority = NORMAL) -> int:
        """The least distance of two jobs in this line."""
        return max(1, round(UNIT / self.weights.get(tenant, 1.0))) * (LOW_PACES if priority is LOW else 1)


@pytest.mark.parametrize("depth", [1, 7, 2000])
def test_shares_are_as_the_weights(depth: int) -> None:
    queue = Queue({"a": 3.0, "b": 1.0})
    queue.submit("a", jobs=depth)
    queue.submit("b", jobs=depth)
    taken: Counter[str] = Counter()
    for _ in range(4000):
        tenant = queue.claim().tenant
        taken[tenant] += 1
        queue.submit(tenant)
    assert taken["a"] / taken["b"] == pytest.approx(3.0, abs=0.15)


@given(st.dictionaries(st.sampled_from("abcdef"), st.sampled_from(WEIGHTS), min_size=2), st.integers(1, 300))
def test_at_any_time_nobody_is_a_job_off_its_share(weights: dict[str, float], claims: int) -> None:
    """Of those that always have jobs waiting."""
    queue = Queue(weights)
    for tenant in weights:
        queue.submit(tenant)
    taken: Counter[str] = Counter()
    for _ in range(claims):
        tenant = queue.claim().tenant
        taken[tenant] += 1
        queue.submit(tenant)
    for tenant in weights:
        assert -1 <= taken[tenant] - queue.virtual_time / queue.pace(tenant) <= 0


STEPS = st.lists(
    st.none() | st.tuples(st.sampled_from("abcd"), st.sampled_from(Priority), st.integers(1, 12)), max_size=60
)


@settings(max_examples=200)
@given(st.lists(st.sampled_from(WEIGHTS), min_size=4, max_size=4), STEPS)
def test_nobody_waits_longer_than_the_docstring_says(
    weights: list[float], steps: list[tuple[str, Priority, int] | None]
) -> None:
    """Whatever the tenants submit before and meanwhile: a step submits jobs, or claims one."""
    queue = Queue(dict(zip("abcd", weights, strict=True)))
    lines = [(tenant, priority) for tenant in "abcd" for priority in Priority]
    claims = 0
    latest: dict[int, int] = {}  # by job: how many claims there may have been before its own
    charged: Counter[str] = Counter()  # normal and high jobs since the tenant's normal line was behind nothing

    def claim() -> None:
        nonlocal claims
        assert claims <= latest[queue.claim().number]
        claims += 1

    for step in [*steps, *[None] * 2000]:
        if step is None:
            if queue.waiting:
                claim()
            continue
        tenant, priority, jobs = step
        for _ in range(jobs):
            at = queue.virtual_time
            if queue.lines[tenant].normal <= at:
                charged[tenant] = 0
            charged[tenant] += priority is not LOW
            place = 1 + sum(job[2:] == (tenant, priority) for job in queue.waiting)
            job = queue.submit(tenant, priority)
            paces = -(-(job.turn - at) // queue.pace(tenant))
            assert paces <= {HIGH: place, NORMAL: charged[tenant], LOW: LOW_PACES * place + charged[tenant]}[priority]
            ahead = sum(paces * queue.pace(tenant) // queue.pace(*line) + 1 for line in lines)
            latest[job.number] = claims + ahead - 1
    assert not queue.waiting


def test_a_newcomer_behind_ten_thousand_is_next_or_next_but_one() -> None:
    queue = Queue()
    queue.submit("a", jobs=10_000)
    assert queue.claims_until(queue.submit("b")) <= 1
    for _ in range(500):
        queue.claim()
    assert queue.claims_until(queue.submit("b")) <= 1
    assert queue.claims_until(queue.submit("c")) <= 1


def test_each_of_a_thousand_newcomers_starts_within_one_round() -> None:
    queue = Queue()
    queue.submit("a", jobs=10_000)
    for number in range(1000):
        queue.submit(f"tenant-{number}")
    assert len({queue.claim().tenant for _ in range(1001)}) == 1001


@pytest.mark.parametrize("priority", Priority)
def test_who_was_idle_has_saved_nothing_up(priority: Priority) -> None:
    queue = Queue()
    queue.submit("idle", priority)
    queue.submit("busy", jobs=5000)
    for _ in range(3000):
        queue.claim()
    queue.submit("idle", priority, jobs=500)
    taken = Counter(queue.claim().tenant for _ in range(400))
    assert taken["idle"] <= 200


@pytest.mark.parametrize(("ahead", "behind"), [(HIGH, NORMAL), (NORMAL, LOW), (HIGH, LOW)])
def test_a_tenants_later_job_of_a_higher_priority_goes_before_what_waits(ahead: Priority, behind: Priority) -> None:
    queue = Queue()
    queue.submit("a", behind, jobs=10_000)
    assert queue.claims_until(queue.submit("a", ahead)) <= 1
    assert [queue.claims_until(queue.submit("a", ahead)) <= 1 for _ in range(50)].count(False) == 0


def test_high_jobs_are_paid_for_by_later_normal_ones() -> None:
    queue = Queue()
    queue.submit("b", jobs=3000)
    queue.submit("a", jobs=200)
    queue.submit("a", HIGH, jobs=150)
    queue.submit("a", jobs=2000)
    taken = [queue.claim().tenant for _ in range(4000)]
    assert Counter(taken[:450])["a"] == pytest.approx(300, abs=2), "beside the normal jobs that waited"
    assert Counter(taken)["a"] == pytest.approx(2000, abs=2), "and no more than its share in the end"


@pytest.mark.parametrize("load", [HIGH, NORMAL])
def test_a_low_job_starts_in_time_under_any_load(load: Priority) -> None:
    queue = Queue()
    queue.submit("a", load, jobs=5)
    low = queue.submit("a", LOW)
    claims = 0
    while queue.claim() != low:
        claims += 1
        queue.submit("a", load, jobs=3)
        queue.submit("b", HIGH, jobs=2)
    assert claims <= (LOW_PACES + 5) * 3 + 3


def test_low_jobs_take_an_eighth_beside_the_others_and_all_there_is_without() -> None:
    queue = Queue()
    for priority in (LOW, NORMAL):
        queue.submit("a", priority, jobs=2)
    taken: Counter[Priority] = Counter()
    for _ in range(900):
        priority = queue.claim().priority
        taken[priority] += 1
        if queue.lines["b"].normal <= queue.virtual_time:
            queue.submit("b", jobs=2)
        queue.submit("a", priority)
    assert taken[NORMAL] > 5 * taken[LOW] > 0
    alone = Queue()
    alone.submit("a", LOW, jobs=10)
    assert [alone.claim().number for _ in range(10)] == list(range(10))


@given(
    st.integers(LAST_TURN - 5000 * UNIT, LAST_TURN),
    st.sampled_from(WEIGHTS),
    st.lists(st.sampled_from(Priority), min_size=1, max_size=20),
)
def test_at_the_end_of_the_range_turns_neither_overflow_nor_go_back(
    virtual_time: int, weight: float, priorities: list[Priority]
) -> None:
    lines = Lines()
    last = dict.fromkeys(Priority, virtual_time)
    for priority in priorities:
        turn = next_turn(lines, virtual_time, priority, weight)
        assert last[priority] <= turn <= LAST_TURN
        assert turn > last[priority] or turn == LAST_TURN
        last[priority] = turn
    assert max(lines.high, lines.normal, lines.low) <= LAST_TURN


def test_a_job_of_twice_the_cost_counts_twice() -> None:
    lines = Lines()
    assert [next_turn(lines, 0, NORMAL, 1.0, cost) for cost in (1.0, 2.0, 1.0)] == [UNIT, 3 * UNIT, 4 * UNIT]
