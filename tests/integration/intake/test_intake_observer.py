"""Observers of the intake hear of each submit and retry, whatever becomes of it."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import make_url

from omni_jobs.database.database import Database
from omni_jobs.errors import OmniJobsError
from omni_jobs.intake.intake import Intake
from omni_jobs.intake.intake_observer import IntakeObserver
from omni_jobs.jobs import SubmitResult
from omni_jobs.requests import Submission
from omni_jobs.settings import Settings
from tests.integration.api_server import ApiServer, serve

ECHO = {"model": "echo", "messages": [{"role": "user", "content": "hello"}]}


class Heard(IntakeObserver):
    def __init__(self) -> None:
        self.submits: list[list[str]] = []  # of each group of submissions: a word for each
        self.retries: list[str] = []

    def submitted(
        self, submissions: Sequence[Submission], results: Sequence[SubmitResult | OmniJobsError], seconds: float
    ) -> None:
        assert len(submissions) == len(results)
        assert seconds >= 0
        self.submits.append([_word(each) for each in results])

    def retried(self, job_id: str, error: OmniJobsError | None) -> None:
        self.retries.append("queued" if error is None else error.code)


def _word(result: SubmitResult | OmniJobsError) -> str:
    if isinstance(result, OmniJobsError):
        return result.code
    return "created" if result.created else "known"


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> Heard:
    heard = Heard()

    def heard_too(*parts: Any, observers: Sequence[IntakeObserver], **more: Any) -> Intake:
        return Intake(*parts, observers=[*observers, heard], **more)

    monkeypatch.setattr("omni_jobs.api.services.Intake", heard_too)
    return heard


@pytest.fixture
def api(heard: Heard, valkey_server: str, tmp_path: Path) -> Iterator[ApiServer]:
    settings = Settings(data_dir=tmp_path, broker_url=valkey_server, storage_sync=False)  # type: ignore[arg-type]
    database = Database(settings.resolved_database_url)
    database.migrate()
    database.close()
    with serve(settings) as server:
        yield server


def test_they_hear_of_what_is_made_known_and_refused(api: ApiServer, heard: Heard) -> None:
    for stages in ({}, {}, {"no_such_stage": {}}):
        api.http.post("/v1/jobs", json={**ECHO, "stages": stages}, headers={"Idempotency-Key": "one"})
    assert heard.submits == [["created"], ["known"], ["invalid_request"]]


def test_they_hear_of_an_outage(api: ApiServer, heard: Heard) -> None:
    api.services.db.close()
    Path(make_url(api.services.settings.resolved_database_url).database or "").unlink()
    answer = api.http.post("/v1/jobs", json=ECHO)
    assert answer.status_code == 503
    assert heard.submits == [["database_unavailable"]]


def test_they_hear_of_retries(api: ApiServer, heard: Heard) -> None:
    job = api.http.post("/v1/jobs", json=ECHO).json()
    for path in (f"{job['id']}/retry", f"{job['id']}/cancel", f"{job['id']}/retry"):
        api.http.post(f"/v1/jobs/{path}")
    assert heard.retries == ["conflict", "queued"]
