import pytest

from omni_jobs.jobs.life.successors import QUOTA, Run, Step, next_step
from omni_jobs.retry import DEFAULT_RETRIES
from omni_jobs.states import JobState, StageRunState

ACTIVE = (JobState.QUEUED, JobState.IN_PROGRESS)
GRAPH: dict[str, tuple[str, ...]] = {"a": (), "b": ("a",), "c": ("a",), "d": ("b", "c")}


def runs(**states: str) -> dict[str, Run]:
    """Runs of GRAPH, pending unless said otherwise."""
    return {
        name: Run(
            n,
            "job",
            name,
            f"echo.{name}",
            inputs,
            StageRunState(states.get(name, "pending")),
            0,
            {},
            DEFAULT_RETRIES,
            None,
            None,
        )
        for n, (name, inputs) in enumerate(GRAPH.items())
    }


def test_a_stage_waits_for_all_its_inputs() -> None:
    for b, c in (("succeeded", "running"), ("running", "succeeded"), ("queued", "succeeded")):
        assert next_step(JobState.IN_PROGRESS, runs(a="succeeded", b=b, c=c).values()) == Step(JobState.IN_PROGRESS)
    there = runs(a="succeeded", b="succeeded", c="succeeded")
    assert next_step(JobState.IN_PROGRESS, there.values()) == Step(JobState.IN_PROGRESS, queue=(there["d"],))


def test_what_is_held_is_not_queued() -> None:
    held = runs()
    held["a"].reason = QUOTA
    assert next_step(JobState.QUEUED, held.values()) == Step(JobState.QUEUED)
    assert next_step(JobState.QUEUED, runs().values()).queue == (runs()["a"],)


def test_one_success_queues_every_consumer() -> None:
    there = runs(a="succeeded")
    assert next_step(JobState.IN_PROGRESS, there.values()).queue == (there["b"], there["c"])


def test_the_last_success_completes() -> None:
    there = runs(**dict.fromkeys(GRAPH, "succeeded"))
    assert next_step(JobState.IN_PROGRESS, there.values()) == Step(JobState.COMPLETED)


@pytest.mark.parametrize("state", ACTIVE)
def test_a_failure_cancels_what_waits_and_leaves_what_runs(state: JobState) -> None:
    there = runs(a="succeeded", b="failed", c="running")
    assert next_step(state, there.values()) == Step(JobState.FAILED, cancel=(there["d"],))


def test_cancelling_lasts_as_long_as_something_runs() -> None:
    there = runs(a="succeeded", b="running", c="cancelled", d="cancelled")
    assert next_step(JobState.CANCELLING, there.values()) == Step(JobState.CANCELLING)
    there = runs(a="succeeded", b="cancelled", c="cancelled", d="cancelled")
    assert next_step(JobState.CANCELLING, there.values()) == Step(JobState.CANCELLED)


@pytest.mark.parametrize("state", [state for state in JobState if state.is_final])
def test_nothing_follows_an_end(state: JobState) -> None:
    assert next_step(state, runs(a="succeeded").values()) == Step(state)
