"""Speech that the talker's max_tokens cut says so: in the job, at the command line, from OmniLLM."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from omni_jobs.cli import app
from omni_jobs.client import Client
from omni_jobs.stack.embedded import EmbeddedStack
from omni_jobs.states import JobState
from tests.e2e.conftest import omni_stack
from tests.services.checkpoint import TinyCheckpoints
from workers.offline import OmniLLM, OmniOutput

pytestmark = pytest.mark.timeout(900)

CUT = "the talker stopped at its max_tokens of 40: the speech is probably cut"
REQUEST = {
    "messages": [{"role": "user", "content": "Tell me about the sea."}],
    "modalities": ["text", "audio"],
    "seed": 1,
    "stages": {"thinker": {"max_tokens": 24}, "talker": {"max_tokens": 40, "ignore_eos": True}},
}


@pytest.fixture(scope="module")
def running(e2e_dir: Path, tiny_checkpoints: TinyCheckpoints) -> Iterator[tuple[EmbeddedStack, Client]]:
    with omni_stack(e2e_dir / "cut", tiny_checkpoints(0)) as found:
        yield found


def test_the_job_the_command_line_and_the_offline_output_say_it(running: tuple[EmbeddedStack, Client]) -> None:
    stack, client = running
    job = client.wait(client.submit({"model": "qwen2_5_omni", **REQUEST}).id, timeout=300)
    assert job.status is JobState.COMPLETED, job.error
    assert job.result is not None
    thinker, talker, code2wav = job.stages
    whole = job.result["usage"]["thinker"]["completion_tokens"] < 24
    assert thinker.finish_reason == job.result["finish_reason"] == ("stop" if whole else "length")
    assert (talker.finish_reason, code2wav.finish_reason) == ("length", None)
    assert [(one.code, one.message) for one in job.warnings if one.stage == "talker"] == [("cut_short", CUT)]
    assert [one.stage for one in job.warnings] == ["talker"] if whole else ["thinker", "talker"]

    for words in (["result", job.id], ["status", job.id], ["result", job.id, "--json"]):
        shown = CliRunner().invoke(app, [*words, "--url", stack.url])
        assert shown.exit_code == 0
        assert f"warning: {CUT}\n" in shown.stderr
        assert "warning:" not in shown.stdout
    assert [one["message"] for one in json.loads(shown.stdout)["warnings"]] == [one.message for one in job.warnings]

    request = dict(REQUEST)
    with OmniLLM("qwen2_5_omni", settings=stack.settings) as llm:
        [output] = llm.generate([request])
    assert isinstance(output, OmniOutput)
    assert list(output.warnings) == job.warnings
    assert {name: each.finish_reason for name, each in output.stages.items()} == {
        stage.name: stage.finish_reason for stage in job.stages
    }
