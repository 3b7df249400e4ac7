"""Why a stage stands still, as the overview says it."""

import pytest

from omni_jobs.dashboard.troubles import reason_of, trouble_of
from omni_jobs.views import StageLoad

LOAD = StageLoad(pipeline="echo", stage="first", pending=0, queued=0, running=0, workers=1, slots=8, paused=False)


@pytest.mark.parametrize(
    ("changed", "reason", "expected"),
    [
        ({}, None, None),
        ({"queued": 3}, "turn", None),
        ({"queued": 3, "running": 8}, None, None),
        ({"paused": True}, None, "paused"),
        ({"queued": 3, "workers": 0}, None, "no worker"),
        ({"queued": 0, "workers": 0}, None, None),
        ({"queued": 3, "workers": 0}, "loading_model", "its workers load the model"),
        ({"queued": 3, "workers": 0, "down": 1}, "loading_model", "engine down"),
        ({"queued": 3, "down": 1}, "turn", None),
        ({"queued": 3, "workers": 0, "drained": 1}, "no_worker", "its workers are drained"),
        ({"queued": 0, "workers": 0, "drained": 1}, None, None),
        ({"queued": 3}, "no_worker", "no worker has this pipeline's file"),
        ({"queued": 3}, "quota", "a tenant is at its limit"),
        ({"queued": 0}, "quota", None),
    ],
)
def test_a_stage_that_stands_still_says_why(changed: dict[str, int], reason: str | None, expected: str | None) -> None:
    assert trouble_of(LOAD.model_copy(update=changed), reason) == expected


def test_a_version_waits_for_its_own_reason() -> None:
    reasons = {("echo", "2", "first"): "turn", ("echo", "1", "first"): "no_worker", ("chat", "1", "first"): "quota"}
    assert reason_of(LOAD, {("echo", "1", "first"): "quota"}) == "quota", "no other version has work"
    assert [reason_of(LOAD.model_copy(update={"version": each}), reasons) for each in ("1", "2", "3")] == [
        "no_worker",
        "turn",
        None,
    ]


def test_a_stage_of_a_pipeline_that_is_gone_says_so_while_it_has_work() -> None:
    assert trouble_of(LOAD, None, is_served=False) is None
    assert trouble_of(LOAD.model_copy(update={"running": 1}), None, is_served=False) == "not served here"
