"""The executor: when it claims, and for how many slots."""

import asyncio
from pathlib import Path

import pytest

from omni_jobs.priority import Priority
from tests.unit.execution.executor_bench import OUTPUT, Bench, settled
from workers.stages.types import OmniModelRunnerOutput


class Held:
    """Runs that last until they are let go, and how many of them there were at once."""

    def __init__(self, bench: Bench) -> None:
        self.free = asyncio.Semaphore(0)
        self.now = self.most = 0
        bench.runner.act = self.act

    async def act(self) -> OmniModelRunnerOutput:
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            await self.free.acquire()
        finally:
            self.now -= 1
        return OUTPUT


async def test_it_claims_for_all_its_slots_when_it_starts(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.queue()
    await bench.ended()
    assert bench.ledger.asked == [(8, True)], "a slot that is freed claims nothing when nothing more may wait"


async def test_a_doorbell_without_work_costs_one_claim(bench: Bench) -> None:
    bench.executor.ring()
    await settled()
    assert bench.ledger.asked == [(8, True)]
    assert (bench.executor.slots.for_any, bench.passed_on) == (8, [])


async def test_doorbells_that_ring_during_a_claim_make_one_more(bench: Bench) -> None:
    bench.ledger.answers.clear()
    bench.executor.ring()
    await settled()
    assert bench.executor.slots.for_any == 0, "what the claim asks for is no room"
    for _ in range(5):
        bench.executor.ring()
    await settled()
    assert bench.ledger.asked == [(8, True)]
    bench.ledger.answers.set()
    await settled()
    assert bench.ledger.asked == [(8, True)] * 2


async def test_freed_slots_claim_while_more_may_wait_and_never_more_than_there_are(tmp_path: Path) -> None:
    bench = Bench(tmp_path, slots=2)
    held = Held(bench)
    for number in range(5):
        bench.queue(number)
    await bench.entered(2)
    await settled()
    assert bench.ledger.asked == [(2, True)]
    for number in range(5):
        held.free.release()
        await bench.until(lambda number=number: bench.executor.ended > number)  # type: ignore[misc]
    await bench.ended(5)
    assert held.most == 2
    assert {at_most for at_most, _ in bench.ledger.asked} == {1, 2}
    assert [report[:2] for report in bench.ledger.reports] == [("complete", number) for number in range(5)]


async def test_a_poll_finds_what_no_doorbell_has_told(tmp_path: Path) -> None:
    bench = Bench(tmp_path, poll_s=0.02)
    await settled()
    assert bench.ledger.asked == [(8, True)]
    bench.queue()
    await bench.ended()
    assert bench.ledger.reports == [("complete", 1, 3)]
    bench.executor.abandon()
    claims = len(bench.ledger.asked)
    await asyncio.sleep(0.1)
    assert len(bench.ledger.asked) == claims, "a worker that takes no more polls no more"


async def test_a_worker_that_a_doorbell_has_filled_passes_it_on_once(tmp_path: Path) -> None:
    bench = Bench(tmp_path, slots=1)
    held = Held(bench)
    await settled()
    for number in range(3):
        bench.queue(number)
    bench.executor.ring()
    await bench.entered()
    assert len(bench.passed_on) == 1
    held.free.release()
    await bench.entered()
    assert len(bench.passed_on) == 1, "that slot was freed here, and the others know"
    bench.executor.ring()
    held.free.release()
    await bench.entered()
    assert len(bench.passed_on) == 2
    held.free.release()
    await bench.ended(3)
    assert len(bench.passed_on) == 2


async def test_a_worker_with_room_left_passes_no_doorbell_on(bench: Bench) -> None:
    for number in range(7):
        bench.offer(number)
    await bench.ended(7)
    assert bench.passed_on == []


async def test_a_suspect_waits_until_nothing_runs_and_nothing_runs_beside_it(tmp_path: Path) -> None:
    bench = Bench(tmp_path, slots=4)
    held = Held(bench)
    bench.queue(1)
    bench.queue(2)
    await bench.entered(2)
    bench.queue(3)
    bench.offer(4, alone=True)
    await settled()
    assert bench.ledger.asked[1:] == [(2, False)]
    held.free.release()
    await bench.until(lambda: bench.executor.ended == 1)
    bench.executor.ring()
    await settled()
    assert bench.executor.slots.for_any == 0, "it drains for the suspect"
    assert len(bench.ledger.asked) == 2
    held.free.release()
    await bench.entered()
    bench.executor.ring()
    await settled()
    assert [claim.stage_run_id for claim, _ in bench.executor.claims_in_flight()] == [4]
    assert bench.ledger.asked[2:] == [(4, True)]
    assert bench.executor.slots.for_any == 0, "nothing is claimed beside a suspect"
    held.free.release()
    await bench.entered()
    assert [claim.stage_run_id for claim, _ in bench.executor.claims_in_flight()] == [3]
    held.free.release()
    await bench.ended(4)
    assert [report[1] for report in bench.ledger.reports] == [1, 2, 4, 3]
    assert bench.executor.slots.for_any == 4


async def test_a_paused_stage_claims_nothing_and_what_runs_goes_on(bench: Bench) -> None:
    held = Held(bench)
    bench.offer(1)
    await bench.entered()
    bench.executor.set_paused(True)
    claims = len(bench.ledger.asked)
    bench.offer(2)
    await settled()
    assert (len(bench.ledger.asked), bench.executor.in_flight, bench.executor.slots.for_any) == (claims, 1, 0)
    held.free.release()
    await bench.ended()
    assert bench.ledger.reports == [("complete", 1, 3)]
    assert len(bench.ledger.asked) == claims
    held.free.release()
    bench.executor.set_paused(False)  # no doorbell rings
    await bench.ended(2)
    assert bench.ledger.reports[-1] == ("complete", 2, 3)


async def test_an_executor_that_starts_paused_never_claims(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.executor.set_paused(True)  # before the loop turns
    await settled()
    assert bench.ledger.asked == []


async def test_kept_slots_are_for_high_jobs_alone(tmp_path: Path) -> None:
    bench = Bench(tmp_path, slots=3, kept=1)
    held = Held(bench)
    for number in range(4):
        bench.queue(number)
    await bench.entered(2)
    await settled()
    asked = list(zip(bench.ledger.asked, bench.ledger.asked_of_high, strict=True))
    assert asked == [((2, True), 1)], "the third slot is kept, and no high job waits"
    assert (bench.executor.slots.for_any, bench.executor.slots.for_high) == (0, 1)
    bench.executor.ring()
    await settled()
    assert len(bench.ledger.asked) == 1, "a doorbell of others says nothing of high jobs"
    bench.queue(7, is_high=True)
    bench.executor.ring(Priority.HIGH)
    await bench.entered()
    assert (bench.ledger.asked[1:], bench.ledger.asked_of_high[1:]) == ([(0, False)], [1])
    assert [claim.stage_run_id for claim, _ in bench.executor.claims_in_flight()] == [0, 1, 7]
    assert (bench.executor.slots.for_any, bench.executor.slots.for_high) == (0, 0)
    for _ in range(5):
        held.free.release()
    await bench.ended(5)
    assert held.most == 3
    assert sorted(report[1] for report in bench.ledger.reports) == [0, 1, 2, 3, 7]


async def test_high_jobs_may_take_all_slots_and_others_never_a_kept_one(tmp_path: Path) -> None:
    bench = Bench(tmp_path, slots=3, kept=1)
    held = Held(bench)
    await settled()
    for number in range(4):
        bench.queue(number, is_high=True)
    bench.queue(4)
    bench.executor.ring(Priority.HIGH)
    await bench.entered(3)
    assert bench.passed_on == [Priority.HIGH], "one high job waits, for which no other worker has a doorbell"
    bench.executor.ring()
    for number in range(5):
        held.free.release()
        await bench.until(lambda number=number: bench.executor.ended > number)  # type: ignore[misc]
    await bench.ended(5)
    assert [report[1] for report in bench.ledger.reports] == [0, 1, 2, 3, 4]


async def test_a_poll_finds_high_jobs_while_others_hold_all_other_slots(tmp_path: Path) -> None:
    bench = Bench(tmp_path, slots=2, kept=1, poll_s=0.02)
    held = Held(bench)
    bench.queue(1)
    bench.queue(2)
    await bench.entered()
    bench.queue(3, is_high=True)
    await bench.entered()
    assert [claim.stage_run_id for claim, _ in bench.executor.claims_in_flight()] == [1, 3]
    for _ in range(3):
        held.free.release()
    await bench.ended(3)


async def test_a_suspect_of_a_high_job_waits_until_nothing_runs(tmp_path: Path) -> None:
    bench = Bench(tmp_path, slots=2, kept=1)
    held = Held(bench)
    bench.queue(1)
    await bench.entered()
    bench.queue(2, alone=True, is_high=True)
    bench.executor.ring(Priority.HIGH)
    await settled()
    assert (bench.executor.slots.for_any, bench.executor.slots.for_high, bench.executor.in_flight) == (0, 0, 1)
    held.free.release()
    await bench.entered()
    assert [claim.stage_run_id for claim, _ in bench.executor.claims_in_flight()] == [2]
    assert bench.executor.slots.for_high == 0, "nothing is claimed beside it"
    held.free.release()
    await bench.ended(2)
    assert (bench.executor.slots.for_any, bench.executor.slots.for_high) == (1, 2)


async def test_a_claim_that_the_database_refuses_costs_a_poll(bench: Bench) -> None:
    bench.ledger.refuses = {"claim"}
    bench.offer()
    await settled()
    assert (bench.ledger.asked, bench.executor.slots.for_any, bench.broken) == ([(8, True)], 8, [])
    bench.ledger.refuses = set()
    bench.executor.ring()  # as a poll does
    await bench.ended()
    assert bench.ledger.reports == [("complete", 1, 3)]


async def test_what_a_drain_finds_being_claimed_is_handed_back(bench: Bench) -> None:
    bench.ledger.answers.clear()
    bench.offer(1)
    bench.offer(2)
    await settled()
    draining = asyncio.create_task(bench.executor.drain(60.0, asyncio.Event()))
    await settled()
    bench.ledger.answers.set()
    await draining
    assert sorted(bench.ledger.reports) == [("release", 1, 3), ("release", 2, 3)]
    assert len(bench.ledger.asked) == 1


@pytest.mark.parametrize("is_granted", [True, False])
async def test_a_worker_fenced_during_a_claim_runs_and_reports_nothing(bench: Bench, is_granted: bool) -> None:
    bench.ledger.answers.clear()
    bench.offer()
    await settled()
    bench.ledger.fenced = True
    bench.ledger.refuses = set() if is_granted else {"lease"}
    bench.executor.abandon()
    bench.ledger.answers.set()
    await bench.ended(int(is_granted))
    assert (bench.ledger.reports, bench.ledger.progress) == ([], [])
    assert (len(bench.ledger.asked), bench.executor.slots.for_any) == (1, 0)
