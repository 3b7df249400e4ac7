"""Qwen3-Omni through the whole stack: a job's text, tokens and speech are Transformers' own."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from omni_jobs.client import Client
from omni_jobs.states import JobState
from tests.e2e.cases import Case, cases
from tests.e2e.conftest import omni_stack
from tests.e2e.test_equals_transformers import samples
from tests.oracles.qwen3_omni import Qwen3OmniReference, Qwen3Result
from tests.services.checkpoint import TinyCheckpoints

pytestmark = [pytest.mark.timeout(900), pytest.mark.long]

TOKENS = 24
VOICES = ("Ethan", "Chelsie", "Aiden")


def chosen() -> list[Case]:
    """One case of each kind, each with a voice of its own as far as there are some."""
    return cases()[:6]


def request(case: Case, voice: str) -> dict[str, Any]:
    body = {**case.request(), "model": "qwen3_omni"}
    body["audio"] = {"voice": voice, "format": "wav"}
    body["stages"]["talker"] = {"temperature": 0, "top_k": 0, "repetition_penalty": 1.05, "max_tokens": TOKENS}
    return body


@pytest.fixture(scope="module")
def client(e2e_dir: Path, tiny_qwen3_omnis: TinyCheckpoints) -> Iterator[Client]:
    with omni_stack(e2e_dir / "qwen3_omni", tiny_qwen3_omnis(0), pipeline="qwen3_omni") as (_, client):
        yield client


@pytest.fixture(scope="module")
def reference(tiny_qwen3_omnis: TinyCheckpoints) -> Qwen3OmniReference:
    return Qwen3OmniReference(tiny_qwen3_omnis(0))


def expected(reference: Qwen3OmniReference, case: Case, voice: str) -> Qwen3Result:
    parts: list[dict[str, Any]] = [{"type": kind, "media": n} for n, (kind, _) in enumerate(case.media)]
    messages: list[dict[str, Any]] = [{"role": "user", "content": [*parts, {"type": "text", "text": case.text}]}]
    if case.system is not None:
        messages.insert(0, {"role": "system", "content": case.system})
    return reference.generate(
        messages, [data for _, data in case.media], voice=voice, thinker_max_tokens=TOKENS, talker_max_tokens=TOKENS
    )


def test_jobs_at_once_are_transformers_own(client: Client, reference: Qwen3OmniReference) -> None:
    spoken = [(case, VOICES[number % len(VOICES)]) for number, case in enumerate(chosen())]
    jobs = [client.submit(request(case, voice)).id for case, voice in spoken]
    for (case, voice), job_id in zip(spoken, jobs, strict=True):
        job = client.wait(job_id, timeout=300)
        assert job.status is JobState.COMPLETED, job.error
        due = expected(reference, case, voice)
        result = job.result or {}
        assert result["text"] == due.text
        assert result["token_ids"] == {"thinker": due.tokens, "talker": due.codes}
        waveform = torch.from_numpy(samples(client.artifact(job.id, "audio.wav")))
        torch.testing.assert_close(waveform, due.waveform, rtol=0, atol=1e-4)


def test_text_alone_asks_no_talker(client: Client, reference: Qwen3OmniReference) -> None:
    case = chosen()[0]
    body = {**Case(case.name, case.text, case.media, modalities=["text"]).request(), "model": "qwen3_omni"}
    job = client.wait(client.submit(body).id, timeout=300)
    assert [(stage.name, stage.payload_bytes or 0) for stage in job.stages] == [("thinker", 0)]
    assert (job.result or {})["text"] == expected(reference, case, "Ethan").text


def test_a_voice_that_the_pipeline_lacks_is_refused(client: Client) -> None:
    from omni_jobs.errors import InvalidRequest

    with pytest.raises(InvalidRequest) as caught:
        client.submit(request(chosen()[0], "Bob"))
    assert caught.value.field == "audio.voice"
