"""A prompt renderer of another package that breaks refuses its request, and harms no other and no process."""

import asyncio
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from omni_jobs.errors import InvalidRequest, PluginBroken
from omni_jobs.intake import admissions, lanes
from omni_jobs.intake.admissions import Admissions
from omni_jobs.intake.lanes import Lanes
from omni_jobs.media.wall import MediaWall
from omni_jobs.new_job import NewJob
from omni_jobs.pipelines.declarations import FAMILIES
from omni_jobs.pipelines.loader import Pipelines, load_pipelines
from omni_jobs.prompts import renderers
from omni_jobs.prompts.renderers import Renderers, load_renderer
from omni_jobs.requests import parse
from omni_jobs.settings import Settings
from tests.unit.pipelines.test_declarations import installed

CONFIG = """
name: breaking
version: "1"
model: {family: breaking}
accepts: [text, prompt_embeds]
stages:
  answer: {kind: ar, processor: chat, produces: text}
outputs:
  text: {stage: answer}
"""

FAMILY = """
from omni_jobs.errors import InvalidRequest
from omni_jobs.pipelines.declarations import ComponentDeclaration, Family

FAMILY = Family({None: ComponentDeclaration("ar", frozenset({"text"}))}, prompts="breaking:Renderer")


class Skipped(BaseException):
    pass


def is_told(place, model_dir):
    file = model_dir / place
    if file.exists():
        raise eval(file.read_text())


class Renderer:
    max_model_len, hidden_size, longest_audio_s = 100, 8, None

    def __init__(self, model_dir):
        self.model_dir = model_dir
        is_told("__init__", model_dir)

    @classmethod
    def takes(cls, config):
        return False

    def check_parameters(self, parameters):
        is_told("check_parameters", self.model_dir)

    def check(self, request):
        if request["messages"][0]["content"] == "never":
            raise InvalidRequest("this is not said", field="messages.0.content")
        if request["messages"][0]["content"] == "well":
            return
        is_told("check", self.model_dir)

    def render(self, request):
        return ""

    def encode(self, request):
        return [1]

    def count_tokens(self, request, media):
        file = self.model_dir / "count_tokens"
        if request["messages"][0]["content"] != "well" and file.exists():
            return eval(file.read_text())
        return 1

    def prompt_limit(self, stages):
        return 100
"""


@pytest.fixture
def checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delitem(sys.modules, "breaking", raising=False)
    monkeypatch.syspath_prepend(str(installed(tmp_path, {FAMILIES: "breaking = breaking:FAMILY"})))
    (tmp_path / "site" / "breaking.py").write_text(FAMILY, encoding="utf-8")
    checkpoint = tmp_path / "checkpoint"
    checkpoint.mkdir()
    (checkpoint / "config.json").write_text("{}", encoding="utf-8")
    (tmp_path / "stage_configs").mkdir()
    (tmp_path / "stage_configs" / "breaking.yaml").write_text(CONFIG, encoding="utf-8")
    return checkpoint


@pytest.fixture
def pipelines(checkpoint: Path) -> Pipelines:
    return load_pipelines(checkpoint.parent / "stage_configs")


async def admitted(checkpoint: Path, pipelines: Pipelines, *texts: str) -> list[object]:
    """What becomes of requests that come in one bulk."""
    settings = Settings(models={"breaking": checkpoint})
    with MediaWall(settings) as wall:
        admissions = Admissions(settings, pipelines, Renderers(settings), wall, Lanes(wall.capacity))
        bodies = [{"model": "breaking", "messages": [{"role": "user", "content": text}]} for text in texts]
        requests = [parse(body, settings) for body in bodies]
        return list(await admissions.admit(requests, wait_for_decoders=True))


BREAKS = [
    ("check", "ValueError('odd')", "ValueError: odd"),
    ("check", "SystemExit(1)", "SystemExit: 1"),
    ("check", "GeneratorExit()", "GeneratorExit"),
    ("check", "StopIteration()", "StopIteration"),
    ("check", "Skipped('no GPU')", "Skipped: no GPU"),
    ("check", "RecursionError('deep')", "RecursionError: deep"),
    ("count_tokens", "None", "TypeError: '>' not supported"),
    ("count_tokens", "'many'", "TypeError: '>' not supported"),
]


@pytest.mark.parametrize(("place", "what", "reason"), BREAKS)
async def test_one_that_breaks_over_a_request_refuses_it_alone(
    checkpoint: Path, pipelines: Pipelines, place: str, what: str, reason: str
) -> None:
    (checkpoint / place).write_text(what, encoding="utf-8")
    well, broken, never = await admitted(checkpoint, pipelines, "well", "break", "never")
    assert isinstance(well, NewJob)
    assert isinstance(broken, PluginBroken)
    assert f"the prompt renderer of breaking failed: {reason}" in broken.message
    assert broken.field == "model.family"
    assert isinstance(never, InvalidRequest)


@pytest.mark.parametrize("place", ["__init__", "check_parameters"])
@pytest.mark.parametrize("error", ["SystemExit('no licence')", "OSError('no such file')", "Skipped('no GPU')"])
async def test_one_that_cannot_be_made_or_asked_refuses_all(
    checkpoint: Path, pipelines: Pipelines, place: str, error: str
) -> None:
    (checkpoint / place).write_text(error, encoding="utf-8")
    for refused in await admitted(checkpoint, pipelines, "well", "break"):
        assert isinstance(refused, PluginBroken)
        assert "the prompt renderer of breaking failed: " in refused.message
    (checkpoint / place).unlink()
    assert all(isinstance(each, NewJob) for each in await admitted(checkpoint, pipelines, "well", "break"))


async def test_one_that_hangs_is_given_up_and_holds_no_other_up(
    checkpoint: Path, pipelines: Pipelines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More of its requests than the lane has places; then a text of another pipeline, and one more of its own."""
    for module in (renderers, lanes, admissions):
        monkeypatch.setattr(module, "HANGS_S", 0.5)
    (checkpoint / "count_tokens").write_text("__import__('threading').Event().wait(5)", encoding="utf-8")
    settings = Settings(models={"breaking": checkpoint, "other": checkpoint})
    (checkpoint.parent / "stage_configs" / "other.yaml").write_text(
        CONFIG.replace("name: breaking", "name: other"), encoding="utf-8"
    )
    known = load_pipelines(checkpoint.parent / "stage_configs")
    with MediaWall(settings) as wall:
        admitting = Admissions(settings, known, Renderers(settings), wall, Lanes(wall.capacity))

        async def admitted_alone(text: str, pipeline: str = "breaking") -> object:
            body = {"model": pipeline, "messages": [{"role": "user", "content": text}]}
            try:
                [found] = await admitting.admit([parse(body, settings)], wait_for_decoders=True)
            except PluginBroken as error:
                return error
            return found

        async with asyncio.timeout(60):
            hanging = [asyncio.create_task(admitted_alone("break")) for _ in range(3 * (os.cpu_count() or 2))]
            other = asyncio.create_task(admitted_alone("well", "other"))
            assert isinstance(await other, NewJob)
            assert all("hangs" in str(found) for found in await asyncio.gather(*hanging))
            assert "a call has not ended for 0.5 s" in str(await admitted_alone("well"))
            (checkpoint / "count_tokens").unlink()
            await asyncio.to_thread(until, lambda: not renderers._under_way)
        assert isinstance(await admitted_alone("well"), NewJob)


def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.05)


async def test_one_whose_parts_are_missing_is_named_when_it_is_loaded(checkpoint: Path) -> None:
    text = FAMILY.replace("def prompt_limit", "def limit").replace("hidden_size, ", "size, ")
    (checkpoint.parent / "site" / "breaking.py").write_text(text, encoding="utf-8")
    with pytest.raises(PluginBroken, match="breaking:Renderer is no prompt renderer: it has no hidden_size, no prompt"):
        await asyncio.to_thread(load_renderer, "breaking", checkpoint)
