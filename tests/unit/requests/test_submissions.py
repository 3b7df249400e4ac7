"""A door that has media as bytes hands them to admission so, and no JSON or base64 is made for it to read again."""

from collections.abc import Iterator
from typing import Any

import pytest

from omni_jobs.errors import InvalidRequest, MissingScope
from omni_jobs.media.wall import MediaWall
from omni_jobs.new_job import NewJob
from omni_jobs.pipelines.loader import load_pipelines
from omni_jobs.requests import JobRequest, Submission, Upload, admit, parse, request_digest
from omni_jobs.settings import Settings
from omni_jobs.tenants.caller import Caller
from tests.oracles import samples

PICTURE = samples.image(64, 48)


@pytest.fixture(scope="module")
def wall() -> Iterator[MediaWall]:
    with MediaWall(Settings()) as decoders:
        yield decoders


def upscaled(*parts: object) -> dict[str, Any]:
    return {"model": "upscale", "messages": [{"role": "user", "content": list(parts)}], "modalities": ["image"]}


def of_bytes(data: bytes) -> dict[str, Any]:
    return upscaled({"type": "image_url", "image_url": {"url": Upload(data)}})


def admitted(submission: Submission, wall: MediaWall) -> NewJob:
    settings = Settings()
    return admit(submission, load_pipelines(settings.resolved_stage_configs), settings, wall=wall)


def submitted(sent: dict[str, Any]) -> Submission:
    return Submission(JobRequest.parse(sent), request_digest(sent), len(PICTURE))


def test_bytes_are_admitted_as_their_base64_is(wall: MediaWall) -> None:
    of_json = admitted(parse(upscaled(samples.image_part(PICTURE)), Settings()), wall)
    job = admitted(submitted(of_bytes(PICTURE)), wall)
    assert [(each.media_type, bytes(each.data)) for each in job.unstored] == [("image/png", PICTURE)]
    assert job.unstored == of_json.unstored
    assert (job.request, job.stages, job.cost) == (of_json.request, of_json.stages, of_json.cost)


def test_a_submit_is_the_same_again_if_its_bytes_are(wall: MediaWall) -> None:
    first, again = (admitted(submitted(of_bytes(bytes(PICTURE))), wall).request_digest for _ in range(2))
    assert first == again
    assert first != admitted(submitted(of_bytes(samples.image(64, 40))), wall).request_digest


@pytest.mark.parametrize("data", [b"", b"no picture"])
def test_bytes_that_are_no_picture_are_refused_by_name(wall: MediaWall, data: bytes) -> None:
    with pytest.raises(InvalidRequest) as refused:
        admitted(submitted(of_bytes(data)), wall)
    assert refused.value.field == "messages.0.content.0.image_url.url"


def test_who_may_not_have_high_priority_is_refused_before_the_media_are_decoded() -> None:
    high = Submission(JobRequest.parse({**of_bytes(PICTURE), "priority": "high"}), "d", 0, Caller(scopes=frozenset()))
    twice = Submission(JobRequest.parse({**of_bytes(PICTURE), "expires_at": 1e9}), "d", 0, expires_in_s=60)
    with MediaWall(Settings()) as untouched:
        for submission, field in ((high, "priority"), (twice, "expires_at")):
            with pytest.raises((InvalidRequest, MissingScope)) as refused:
                admitted(submission, untouched)
            assert refused.value.field == field
        assert untouched.pid is None  # the first medium starts the decoders


def test_an_upload_stands_only_where_media_may() -> None:
    with pytest.raises(InvalidRequest) as refused:
        JobRequest.parse({"model": "upscale", "messages": [{"role": "user", "content": Upload(PICTURE)}]})
    assert refused.value.field == "messages.0.content"
