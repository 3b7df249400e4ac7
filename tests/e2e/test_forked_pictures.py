"""Qwen-Image draws again what was asked once, on a tiny checkpoint: its fork is the picture of a whole job."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from omni_jobs.client import Client
from omni_jobs.settings import Settings
from omni_jobs.stack.embedded import EmbeddedStack
from omni_jobs.states import JobState
from omni_jobs.views import JobView

pytest.importorskip("vllm")

pytestmark = [pytest.mark.long, pytest.mark.timeout(400)]


def request(seed: int, steps: int) -> dict[str, Any]:
    return {
        "model": "qwen_image",
        "messages": [{"role": "user", "content": "A lighthouse at dusk"}],
        "modalities": ["image"],
        "seed": seed,
        "stages": {"denoise": {"width": 64, "height": 48, "steps": steps}},
        "keep_payloads": True,
    }


def ended(client: Client, job: JobView) -> tuple[JobView, str]:
    """The job once it has completed, and the digest of its picture."""
    job = client.wait(job.id, timeout=120)
    assert job.status is JobState.COMPLETED, job.error
    [picture] = job.artifacts
    return job, picture.digest


def test_another_seed_and_step_count_cost_no_prompt(tiny_qwen_images: Callable[[int], Path], tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path, models={"qwen_image": tiny_qwen_images(0)})
    with EmbeddedStack(settings, pipelines=["qwen_image"]) as stack, Client(stack.url) as client:
        job, picture = ended(client, client.submit(request(seed=7, steps=4)))
        changes = {"seed": 8, "stages": {"denoise": {"steps": 6}}}
        fork, another = ended(client, client.fork(job.id, "denoise", changes))
        _, same = ended(client, client.fork(fork.id, "denoise", {"seed": 7, "stages": {"denoise": {"steps": 4}}}))
        _, whole = ended(client, client.submit(request(seed=8, steps=6)))
    assert [(stage.name, stage.attempt) for stage in fork.stages] == [("encode", 0), ("denoise", 1), ("decode", 1)]
    assert (another, same) == (whole, picture)
    assert another != picture
