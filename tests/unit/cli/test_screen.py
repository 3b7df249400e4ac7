"""omni_jobs.cli.screen: the outcome of a job on a terminal."""

from typing import Any

import pytest
import typer

from omni_jobs.cli.exits import Exit
from omni_jobs.cli.screen import show_outcome
from omni_jobs.views import JobView

ERROR = {"code": "model_error", "message": "there is nothing to say"}


def job(status: str, **more: Any) -> JobView:
    found: dict[str, Any] = {"id": "job-1", "pipeline": "voice", "pipeline_version": "1", "modalities": ["text"]}
    found |= {"created_at": "2026-01-01T00:00:00Z", "started_at": None, "finished_at": None, "stages": []}
    found |= {"result": None, "artifacts": [], "error": None, "metadata": {}, "seed": 0, "status": status}
    return JobView.model_validate(found | more)


def outcome(capsys: pytest.CaptureFixture[str], shown: JobView, code: int = Exit.FAILED) -> tuple[str, str]:
    with pytest.raises(typer.Exit) as raised:
        show_outcome(shown, as_json=False, out=None)
    assert raised.value.exit_code == code
    printed = capsys.readouterr()
    return printed.out, printed.err


def test_a_failed_job_shows_the_text_that_was_made(capsys: pytest.CaptureFixture[str]) -> None:
    made = {"text": "An answer.", "texts": {"listen": "A question."}}
    out, err = outcome(capsys, job("failed", result_so_far=made, error=ERROR))
    assert out == "An answer.\n"
    assert "there is nothing to say" in err


def test_a_job_that_failed_before_its_text_shows_what_was_heard(capsys: pytest.CaptureFixture[str]) -> None:
    cancelled = job("cancelled", result_so_far={"texts": {"listen": "A question."}})
    out, err = outcome(capsys, cancelled, Exit.CANCELLED)
    assert out == ""
    assert err.startswith("listen: A question.\n")


def test_a_completed_job_shows_its_text_alone(capsys: pytest.CaptureFixture[str]) -> None:
    show_outcome(job("completed", result={"text": "Done.", "texts": {"listen": "Go."}}), as_json=False, out=None)
    assert capsys.readouterr() == ("Done.\n", "")


def test_the_stage_and_the_field_of_a_failure_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    _, err = outcome(capsys, job("failed", error={**ERROR, "stage": "denoise", "field": "steps"}))
    assert err == "omni-jobs: job job-1 is failed: stage denoise, field steps: there is nothing to say\n"
