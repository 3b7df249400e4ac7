"""Tenants who try for more than their share: what is left to another of the next 200 claims.

Each trick is played beside a victim with enough jobs waiting, in a line that has gone on for a while. A share is one of
claims, or of their cost where the jobs cost more. Run it with ``-s`` to read the shares.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any, Final

import pytest

from omni_jobs.database.database import Database
from omni_jobs.jobs import Claim, Jobs
from omni_jobs.jobs.order.turns import LOW_PACES
from omni_jobs.priority import Priority
from omni_jobs.tenants.tenant_store import Tenants
from tests.integration.job_steps import (
    claim,
    done,
    new_job,
    register,
    release,
)

# The turns, of which the order follows, are shown on both by test_take_turns, test_quota and test_jobs_model.
pytestmark = pytest.mark.parametrize(
    "database_url", ["sqlite", pytest.param("postgresql", marks=pytest.mark.long)], indirect=True
)

ONE: dict[str, list[str]] = {"first": []}
CLAIMS: Final = 200
LEAST: Final = 0.95  # of what the victim's weight says


class Line:
    """A stage with one worker, which claims and completes one stage run after another."""

    def __init__(self, database: Database) -> None:
        self.jobs = Jobs(database)
        self.tenants = Tenants(database)
        self.tenants.create("victim")
        self.kept: list[Claim] = []  # the cheaters' that run on, because they are long
        self.submitted: dict[str, tuple[str, float]] = {}  # tenant and cost by job id
        register(self.jobs, "w", slots=1000, lease_s=600)

    def submit(self, tenant: str, count: int, **changes: Any) -> list[str]:
        batch = [new_job(ONE, tenant=tenant, **changes) for _ in range(count)]
        self.submitted |= {job.job_id: (job.tenant, job.cost) for job in batch}
        return [result.job_id for result in self.jobs.submit_all(batch)]

    def run(self, count: int, *, keeps: str | None = None, each: Callable[[], object] | None = None) -> Counter[str]:
        """Claim so many stage runs and complete them, but for those of the tenant ``keeps``. Call ``each`` before.

        Return the cost of what was claimed by tenant.
        """
        taken: Counter[str] = Counter()
        for _ in range(count):
            if each is not None:
                each()
            [claimed] = claim(self.jobs, "w", 1)
            tenant, cost = self.submitted[claimed.job_id]
            taken[tenant] += int(cost)
            if tenant == keeps:
                self.kept.append(claimed)
            else:
                self.jobs.report([done(claimed, "w")])
        return taken

    def end_kept(self) -> None:
        """Cancel what the cheater has running, all at once."""
        for claimed in self.kept:
            self.jobs.cancel(claimed.job_id)
        release(self.jobs, [(claimed.stage_run_id, claimed.attempt) for claimed in self.kept], "w")
        self.kept.clear()

    def check(self, name: str, taken: Counter[str], weight: float) -> None:
        """Check the victim's share against its weight, of all weights together."""
        share = taken["victim"] / taken.total()
        print(f"{name}: the victim had {share:.3f}, its weight says {weight:.3f}: {share / weight:.2f}")
        assert share >= LEAST * weight, name


@pytest.fixture
def line(database: Database) -> Line:
    return Line(database)


def test_turns_that_are_held(line: Line) -> None:
    """Its running jobs take long; once the line has passed it by, it cancels them, and each end lets in the next."""
    line.tenants.create("cheat", limits={"running_jobs": 4})
    line.submit("cheat", 400)
    line.submit("victim", 500)
    line.run(200, keeps="cheat")
    line.end_kept()
    line.check("held turns", line.run(CLAIMS), 1 / 2)


@pytest.mark.parametrize("limit", [None, 1000])
def test_a_limit_that_is_lifted(line: Line, limit: int | None) -> None:
    line.tenants.create("cheat", limits={"running_jobs": 1})
    line.submit("cheat", 600)
    line.submit("victim", 500)
    line.run(200, keeps="cheat")
    line.tenants.set("cheat", limits={"running_jobs": limit})
    line.jobs.rescue()
    line.check("a limit lifted", line.run(CLAIMS), 1 / 2)
    line.end_kept()


def test_a_limit_that_is_set_and_lifted_again(line: Line) -> None:
    """The lines of turns with the limit and without it follow on each other."""
    line.tenants.create("cheat")
    line.submit("cheat", 100)
    line.submit("victim", 600)
    for limit in (3, None, 5):
        line.tenants.set("cheat", limits={"running_jobs": limit})
        line.submit("cheat", 100)
        line.jobs.rescue()
        line.check(f"the limit set to {limit}", line.run(CLAIMS), 1 / 2)


def test_what_is_let_in_is_cancelled_for_the_next(line: Line) -> None:
    """It cancels what has been let in and waits, until something is let in that it likes better."""
    line.tenants.create("cheat", limits={"running_jobs": 2})
    mine = line.submit("cheat", 500)
    line.submit("victim", 400)
    line.run(100)

    def cancel_some() -> None:
        for _ in range(2):
            line.jobs.cancel(mine.pop(0))

    line.check("cancelled while it waits", line.run(CLAIMS, each=cancel_some), 1 / 2)


def test_ended_jobs_are_retried_all_at_once(line: Line) -> None:
    """Their old turns lie far before those of the victim."""
    mine = line.submit("cheat", 250)
    for job_id in mine:
        line.jobs.cancel(job_id)
    line.submit("victim", 500)
    line.run(150)
    for job_id in mine:
        line.jobs.retry(job_id)
    line.check("retried", line.run(CLAIMS), 1 / 2)


def test_held_jobs_are_cancelled_and_retried(line: Line) -> None:
    line.tenants.create("cheat", limits={"running_jobs": 3})
    mine = line.submit("cheat", 250)
    line.submit("victim", 500)
    line.run(150, keeps="cheat")
    for job_id in mine[3:]:
        line.jobs.cancel(job_id)
        line.jobs.retry(job_id)
    line.end_kept()
    line.check("held, cancelled, retried", line.run(CLAIMS), 1 / 2)


def test_many_tenants_of_one_owner(line: Line) -> None:
    """Each has its own weight, and no more: what they save up together is nothing either."""
    names = [f"cheat-{number}" for number in range(4)]
    for name in names:
        line.tenants.create(name, limits={"running_jobs": 2})
        line.submit(name, 200)
    line.submit("victim", 300)
    line.run(8 + 60)
    for name in names:
        line.tenants.set(name, limits={"running_jobs": None})
    line.jobs.rescue()
    line.check("four tenants of one owner", line.run(CLAIMS), 1 / 5)


def test_jobs_that_cost_much(line: Line) -> None:
    line.submit("cheat", 400, cost=16.0)
    line.submit("victim", 400)
    line.run(50)
    line.check("jobs of cost 16", line.run(CLAIMS), 1 / 2)


def test_jobs_that_cost_much_are_held(line: Line) -> None:
    """The cost is paid when they are let in, and again when they are retried."""
    line.tenants.create("cheat", limits={"running_jobs": 2})
    mine = line.submit("cheat", 40, cost=16.0)
    line.submit("victim", 500)
    line.run(50, keeps="cheat")
    retried = [each.job_id for each in line.kept]
    line.end_kept()
    for job_id in (*retried, *mine[5:10]):
        line.jobs.cancel(job_id)
        line.jobs.retry(job_id)
    line.check("held jobs of cost 16", line.run(CLAIMS), 1 / 2)


def test_high_jobs_alone(line: Line) -> None:
    line.tenants.create("cheat", limits={"running_jobs": 4})
    line.submit("victim", 400)
    line.run(50)
    line.submit("cheat", 300, priority=Priority.HIGH)
    line.check("high jobs", line.run(CLAIMS), 1 / 2)


@pytest.mark.parametrize("limit", [None, 30])
def test_jobs_of_all_priorities(line: Line, limit: int | None) -> None:
    """Each of a tenant's lines has its weight, until its normal jobs of before have ended (jobs/turns.py)."""
    line.tenants.create("cheat", limits={} if limit is None else {"running_jobs": limit})
    line.submit("victim", 400)
    line.run(50)
    for priority in (Priority.NORMAL, Priority.HIGH, Priority.LOW):
        line.submit("cheat", 150, priority=priority)
    line.check("all priorities", line.run(CLAIMS), 1 / (3 + 1 / LOW_PACES))


def test_high_jobs_beside_normal_ones_are_paid_for(line: Line) -> None:
    """For a while they have a share of their own. In the end the tenant had no more than its weight says."""
    line.submit("victim", 800)
    line.submit("cheat", 200)
    line.submit("cheat", 200, priority=Priority.HIGH)
    first = line.run(CLAIMS)
    line.check("high beside normal jobs", first, 1 / 3)
    line.submit("cheat", 400)
    line.check("high beside normal jobs, in the end", first + line.run(3 * CLAIMS), 1 / 2)


def test_a_heavy_victim(line: Line) -> None:
    line.tenants.set("victim", weight=3.0)
    line.tenants.create("cheat", limits={"running_jobs": 5})
    line.submit("cheat", 400)
    line.submit("victim", 700)
    line.run(300, keeps="cheat")
    line.end_kept()
    line.check("weight 3 against 1", line.run(CLAIMS), 3 / 4)
