"""Edits through OmniLLM: Qwen-Image-Edit's tiny checkpoint, every stage real, against Diffusers' own pipeline."""

import base64
import io
import json
import logging
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from omni_jobs.errors import InvalidInput, ModelError
from tests.integration.runners.qwen_image_edits import picture
from tests.oracles.qwen_image_edit import QwenImageEditReference
from workers.models.qwen_image.processors import EditProcessor
from workers.models.qwen_image.prompts import QwenImageEditPromptRenderer
from workers.offline import OmniLLM, OmniOutput
from workers.runners.diffusion.prompt import DiffusionPrompt
from workers.stages.types import StageInput

pytest.importorskip("vllm")


@pytest.fixture(scope="module")
def checkpoint(tiny_qwen_image_edits: Callable[[int], Path]) -> Path:
    return tiny_qwen_image_edits(0)


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the processes of vLLM write their log: a line begins with the process's name and the level."""
    return tmp_path_factory.mktemp("log") / "vllm.log"


@pytest.fixture(scope="module")
def llm(checkpoint: Path, log: Path) -> Iterator[OmniLLM]:
    config = {
        "version": 1,
        "formatters": {"line": {"format": "%(processName)s %(levelname)s %(message)s"}},
        "handlers": {"file": {"class": "logging.FileHandler", "filename": str(log), "formatter": "line"}},
        "loggers": {"vllm": {"handlers": ["file"], "level": "INFO", "propagate": False}},
    }
    file = log.with_name("logging.json")
    file.write_text(json.dumps(config), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_LOGGING_CONFIG_PATH", str(file))
        with OmniLLM("qwen_image_edit", model=checkpoint) as started:
            yield started
    logger = logging.getLogger("vllm")
    for handler in list(logger.handlers):
        if isinstance(handler, logging.FileHandler):
            # Else the next configuration of vLLM's log leaves its file to the garbage collector, in some other test.
            logger.removeHandler(handler)
            handler.close()


def test_no_process_of_the_engine_logs_an_error_at_its_start(llm: OmniLLM, log: Path) -> None:
    lines = re.findall(r"^(\S+) (INFO|WARNING|ERROR) (.*)", log.read_text(encoding="utf-8"), re.MULTILINE)
    assert {process for process, _, _ in lines} >= {"MainProcess", "EngineCore"}
    assert [line for line in lines if line[1] == "ERROR"] == []


PIXELS = 64 * 64  # of a source once scaled, so that a step is quick


def part(image: Image.Image) -> dict[str, Any]:
    file = io.BytesIO()
    image.save(file, "PNG")
    url = f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
    return {"type": "image_url", "image_url": {"url": url}}


def request(
    text: str, pictures: Sequence[Image.Image], *, seed: int = 0, negative: str | None = " ", **denoise: Any
) -> dict[str, Any]:
    return {
        "messages": [{"role": "user", "content": [*map(part, pictures), {"type": "text", "text": text}]}],
        "modalities": ["image"],
        "seed": seed,
        "stages": {
            "encode": {"negative_prompt": negative},
            "sources": {"pixels": PIXELS},
            "denoise": {"width": 64, "height": 48, "steps": 3} | denoise,
        },
    }


def made(output: Any) -> np.ndarray[Any, Any]:
    assert isinstance(output, OmniOutput), output
    (artifact,) = output.artifacts.values()
    return np.asarray(Image.open(io.BytesIO(artifact.data)))


@pytest.fixture
def prompts(monkeypatch: pytest.MonkeyPatch) -> dict[int, DiffusionPrompt]:
    """Seed → the prompt of the denoise stage, made of what vLLM and the VAE returned."""
    seen: dict[int, DiffusionPrompt] = {}
    make = EditProcessor.__call__

    def note(processor: EditProcessor, stage_input: StageInput) -> DiffusionPrompt:
        seen[stage_input.seed] = make(processor, stage_input)
        return seen[stage_input.seed]

    monkeypatch.setattr(EditProcessor, "__call__", note)
    return seen


def test_edits_are_those_of_the_reference(llm: OmniLLM, checkpoint: Path, prompts: dict[int, DiffusionPrompt]) -> None:
    reference = QwenImageEditReference(checkpoint)
    cases: list[dict[str, Any]] = [
        {"text": "make the boat red", "pictures": [picture(80, 60)], "seed": 1},
        {
            "text": "put the cat of picture 1 beside the lamp of picture 2",
            "pictures": [picture(300, 90, 1), picture(48, 90, 2)],
            "negative": "rain, fog",
            "seed": 2,
            "true_cfg_scale": 2.5,
        },
        {"text": "夜", "pictures": [picture(64, 64, n) for n in range(3)], "negative": None, "seed": 3, "width": 128},
    ]
    outputs = llm.generate([request(**case) for case in cases])
    for case, output in zip(cases, outputs, strict=True):
        size = {"height": 48, "width": case.get("width", 64)}
        texts = {"prompt_embeds": case["text"], "negative_prompt_embeds": case.get("negative", " ")}
        embeds = {name: reference.embeds_of(text, case["pictures"]) for name, text in texts.items() if text is not None}
        of_stages: Any = prompts[case["seed"]].tensors
        assert of_stages.keys() == {*embeds, "source_tokens"}
        for name, rows in embeds.items():
            assert of_stages[name].shape == rows.shape
            assert (of_stages[name] - rows).abs().max() <= 1e-5
        latents = reference.edit(
            embeds["prompt_embeds"],
            embeds.get("negative_prompt_embeds"),
            case["pictures"],
            pixels=PIXELS,
            steps=3,
            scale=case.get("true_cfg_scale", 4.0),
            seed=case["seed"],
            **size,
        )
        expected = reference.pixels(latents, **size).numpy()
        assert made(output).shape == expected.shape
        assert np.abs(made(output).astype(int) - expected).max() <= 1


def test_a_picture_of_another_number_of_tokens_is_found_out(llm: OmniLLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job of its own fails, and the stage lives on."""
    count = QwenImageEditPromptRenderer.picture_tokens
    monkeypatch.setattr(QwenImageEditPromptRenderer, "picture_tokens", lambda *given: count(*given) + 1)
    (refused,) = llm.generate([request("x", [picture(64, 64)])])
    assert isinstance(refused, ModelError)
    assert (refused.stage, refused.field) == ("encode", "prompt_embeds.shape")
    monkeypatch.undo()
    (output,) = llm.generate([request("x", [picture(64, 64)])])
    assert made(output).shape == (48, 64, 3)


@pytest.mark.parametrize(
    ("given", "field"),
    [
        (request("x", []), "requests.0.messages.0.content"),
        (request("x", [picture(64, 64)] * 4), "requests.0.messages.0.content"),
        (request("x", [picture(64, 64), picture(1, 1)]), "requests.0.messages.0.content.1.image_url.url"),
    ],
)
def test_a_bad_request_is_refused_before_any_stage_runs(llm: OmniLLM, given: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        llm.generate([given])
    assert refused.value.field == field
