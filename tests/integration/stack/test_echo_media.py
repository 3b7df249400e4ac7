"""The pipeline ``echo_media`` through the whole system: real workers, an API, a broker, and files that are fetched."""

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import av
import pytest
import soundfile
from PIL import Image

from omni_jobs.client import Client, user_message
from omni_jobs.settings import Settings
from omni_jobs.stack.embedded import EmbeddedStack
from omni_jobs.states import JobState
from omni_jobs.views import JobView
from tests.oracles import samples

WITHIN_S = 120.0


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    settings = Settings(data_dir=tmp_path_factory.mktemp("stack") / "data", progress_every_s=0.1)
    stack = EmbeddedStack(settings, pipelines=["echo_media"])
    stack.start()
    try:
        with Client(stack.url) as client:
            yield client
    finally:
        stack.stop()


def submitted(client: Client, message: dict[str, Any], *modalities: str, **fields: Any) -> str:
    body = {"model": "echo_media", "messages": [message], "modalities": list(modalities), **fields}
    return client.submit(body).id


def ended(client: Client, job_id: str) -> JobView:
    job = client.wait(job_id, timeout=WITHIN_S)
    assert job.status is JobState.COMPLETED, job
    return job


def test_one_job_of_each_kind_makes_its_file(client: Client, tmp_path: Path) -> None:
    (tmp_path / "tone.wav").write_bytes(samples.wav(2.0))
    heard = submitted(client, user_message(audio=[tmp_path / "tone.wav"]), "text", stages={"answer": {"words": True}})
    spoken = submitted(client, user_message("x" * 20), "text", "audio", audio={"voice": "onyx", "format": "mp3"})
    drawn = submitted(client, user_message("a boat"), "image", image={"format": "webp"})
    filmed = submitted(client, user_message("a boat"), "video", stages={"video": {"seconds": 2, "fps": 6}})

    heard_job = ended(client, heard)
    assert heard_job.result is not None
    assert heard_job.result["text"] == "440 Hz for 2.00 s"
    [transcript] = heard_job.result["transcripts"]["answer"]
    assert [word["text"] for word in transcript["segments"][0]["words"]] == ["440", "Hz", "for", "2.00", "s"]
    spoken_job = ended(client, spoken)
    assert spoken_job.result is not None
    assert spoken_job.result["text"] == "x" * 20
    sound, rate = soundfile.read(io.BytesIO(client.artifact(spoken_job, "audio.mp3")))
    assert len(sound) / rate == pytest.approx(1.0, abs=0.01)
    assert Image.open(io.BytesIO(client.artifact(ended(client, drawn), "image.webp"))).size == (512, 512)
    with av.open(io.BytesIO(client.artifact(ended(client, filmed), "video.mp4"))) as container:
        assert len(list(container.decode(video=0))) == 12


def test_a_picture_that_takes_its_time_shows_previews(client: Client) -> None:
    parameters = {"steps": 20, "delay_s": 2.0}
    job_id = submitted(client, user_message("a boat"), "image", previews=True, stages={"picture": parameters})
    seen: dict[int, str] = {}
    while not (job := client.get(job_id, within_s=0.05)).status.is_final:
        progress = job.stages[0].progress
        if progress is not None and progress.picture is not None:
            seen[progress.done] = progress.picture
    assert job.status is JobState.COMPLETED
    assert len(set(seen.values())) >= 3
    assert all(url.startswith("data:image/jpeg;base64,") for url in seen.values())
    assert max(seen) <= 20
