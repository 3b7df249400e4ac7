"""The query of the list of jobs: what it means, what it refuses, and how it goes on to the next page."""

import pytest
from starlette.datastructures import QueryParams

from omni_jobs.dashboard.job_query import JobQuery
from omni_jobs.errors import InvalidRequest, MissingScope
from omni_jobs.states import JobState
from omni_jobs.tenants.caller import Caller

ANYBODY = Caller(sees_all=True)
JOB = "job-0198f2c4a1b27c3d8e4f5a6b7c8d9e0f"


def query(text: str) -> JobQuery:
    return JobQuery.of(QueryParams(text))


def test_it_means_what_the_query_of_the_api_does() -> None:
    asked = query(
        "status=failed&pipeline=echo&stage=first&error_code=x&metadata=a%3Db&metadata=c%3Dd%3De&created_after=5"
    )
    wanted = asked.filter(ANYBODY)
    assert wanted.states == frozenset([JobState.FAILED])
    assert (wanted.pipeline, wanted.stage, wanted.error_code, wanted.created_after) == ("echo", "first", "x", 5.0)
    assert wanted.metadata == (("a", "b"), ("c", "d=e"))
    assert asked.is_filtered


def test_an_empty_field_of_a_form_is_none() -> None:
    asked = query("status=&pipeline=&metadata=&created_after=&tenant=")
    assert (asked.is_filtered, asked.text(), asked.filter(ANYBODY).states) == (False, "", None)


def test_the_next_page_keeps_the_filter_and_an_action_is_of_no_page() -> None:
    asked = query(f"pipeline=echo&cursor={JOB}")
    assert (asked.cursor, asked.text(), asked.text(JOB)) == (JOB, "pipeline=echo", f"pipeline=echo&cursor={JOB}")
    assert asked.to_act(dry_run=True).cursor is None


@pytest.mark.parametrize(("text", "expected"), [("", 5.0), ("&created_before=4", 4.0), ("&created_before=6", 5.0)])
def test_an_action_is_of_no_job_that_came_after_its_preview(text: str, expected: float) -> None:
    assert query(f"pipeline=echo{text}").to_act(before=5.0).created_before == expected


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("status=none", "status"),
        ("state=failed", "state"),
        ("pipeline=A%20b", "pipeline"),
        ("cursor=x", "cursor"),
        ("metadata=x", "metadata"),
        ("metadata=a%3Db&metadata=a%3Dc", "metadata"),
        ("created_after=yesterday", "created_after"),
        ("created_after=2026-11-27T09:00", "created_after"),
        ("status=failed&status=queued", "status"),
        ("pipeline=" + "x" * 9000, "query"),
    ],
)
def test_what_it_does_not_know_it_names(text: str, field: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        query(text)
    assert refused.value.field == field


def test_the_tenant_of_others_is_refused() -> None:
    assert query("tenant=acme").filter(ANYBODY).tenant == "acme"
    with pytest.raises(MissingScope):
        query("tenant=acme").filter(Caller(tenant="globex"))
