"""What the tests of AR stages share: runners on the tiny checkpoint, and prompts of every kind."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from omni_jobs.payloads import Payload
from omni_jobs.pipelines.loader import load_pipeline
from omni_jobs.pipelines.stage_config import Pipeline
from omni_jobs.settings import Settings
from tests.oracles.reference import Reference, ReferenceResult
from workers.models.qwen2_5_omni.processors import Thinker2TalkerProcessor
from workers.runners.ar.ar_runner import ARRunner
from workers.runners.ar.engine_settings import ArEngine
from workers.runners.ar.parameters import ArParameters, TokenParameters
from workers.runners.ar.prompts import OmniTextPrompt, OmniTokensPrompt
from workers.stages.engine_args import OmniEngineArgs
from workers.stages.stage import Stage
from workers.stages.types import OmniModelRunnerOutput, Progress, StageInput

PIPELINE = load_pipeline(Path(__file__).parents[2] / "stage_configs" / "qwen2_5_omni.yaml")
THINKER_TOKENS = 24
TALKER_TOKENS = 48


@dataclass(frozen=True)
class Case:
    """One prompt: the messages, their media for the oracle, the same for vLLM."""

    messages: Sequence[Mapping[str, Any]]
    media: Sequence[Any] = ()
    multi_modal_data: Mapping[str, Any] = field(default_factory=dict)

    def expected(self, reference: Reference, **options: Any) -> ReferenceResult:
        limits = {"thinker_max_tokens": THINKER_TOKENS, "talker_max_tokens": TALKER_TOKENS, **options}
        return reference.generate(self.messages, self.media, **limits)

    def prompt(self, reference: Reference, *, capture: bool = True, **parameters: Any) -> OmniTextPrompt:
        merged = {"temperature": 0, "max_tokens": THINKER_TOKENS, **parameters}
        return OmniTextPrompt(
            reference.prompt(self.messages), self.multi_modal_data, ArParameters(**merged), seed=1, capture=capture
        )


def _user(*parts: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [{"role": "user", "content": list(parts)}]


def text(words: str) -> Case:
    return Case(_user({"type": "text", "text": words}))


def _cases() -> dict[str, Case]:
    noise = np.random.default_rng(0)
    audio = (noise.standard_normal(32_000) * 0.1).astype(np.float32)
    image = Image.fromarray(noise.integers(0, 255, (120, 160, 3), dtype=np.uint8))
    frames = noise.integers(0, 255, (8, 84, 112, 3), dtype=np.uint8)
    metadata = {
        "fps": 2.0,
        "total_num_frames": 8,
        "frames_indices": list(range(8)),
        "duration": 4.0,
        "do_sample_frames": False,
        "video_backend": "test",
    }
    listen, look = {"type": "audio", "media": 0}, {"type": "image", "media": 0}
    sounds, pictures = [(audio, 16_000)], [image]
    return {
        "text": text("Hello there, 你好, مرحبا 🙂"),
        "audio": Case(_user(listen, {"type": "text", "text": "What is it?"}), [audio], {"audio": sounds}),
        "image": Case(_user(look, {"type": "text", "text": "What is it?"}), [image], {"image": pictures}),
        "audio+image": Case(
            _user(listen, {"type": "image", "media": 1}, {"type": "text", "text": "Do they match?"}),
            [audio, image],
            {"audio": sounds, "image": pictures},
        ),
        "video": Case(
            _user({"type": "video", "media": 0}, {"type": "text", "text": "What happens?"}),
            [frames],
            {"video": [(frames, metadata)]},
        ),
    }


CASES = _cases()
LENGTHS = [text("word " * n) for n in (1, 2, 5, 9, 14, 20, 27, 35)]


def runner(checkpoint: Path, stage: str, spool: Path, pipeline: Pipeline = PIPELINE, **engine: Any) -> ARRunner:
    """A runner of one stage, with the stage config's engine settings but for ``engine``."""
    config = pipeline.stage(stage)
    model = Stage(pipeline, config, checkpoint).model
    assert model is not None
    args = OmniEngineArgs.for_stage(config, model, Settings(device="cpu", spool_dir=spool))
    settings = ArEngine(**{**args.engine.model_dump(exclude_unset=True), **engine})
    return ARRunner(replace(args, engine=settings))


def quiet(progress: Progress) -> None:
    """A sink for progress nobody reads."""


def thinker_payload(checkpoint: Path, output: OmniModelRunnerOutput, voice: str = "Chelsie") -> Payload:
    return Stage(PIPELINE, PIPELINE.stage("thinker"), checkpoint).payload_of(output, stage_input({}, voice), 1)


def expected_payload(checkpoint: Path, expected: ReferenceResult, positions: torch.Tensor) -> Payload:
    """The thinker's payload as the oracle has it."""
    output = OmniModelRunnerOutput(
        token_ids=expected.thinker_tokens,
        prompt_token_ids=expected.prompt_ids,
        hidden_states=expected.hidden_rows,
        multimodal_outputs={"mrope_positions": positions},
        values={"mrope_delta": int(positions.max()) + 1 - positions.shape[1]},
    )
    return thinker_payload(checkpoint, output)


def talker_prompt(processor: Thinker2TalkerProcessor, payload: Payload, **parameters: Any) -> OmniTokensPrompt:
    merged = {"temperature": 0, "repetition_penalty": 1.05, "max_tokens": TALKER_TOKENS, **parameters}
    return processor(stage_input({"thinker": payload}, "Chelsie", ArParameters(**merged)))


def stage_input(
    upstream: Mapping[str, Payload],
    voice: str,
    parameters: TokenParameters | None = None,
    *,
    capture: bool = False,
) -> StageInput:
    return StageInput(
        job_id="job-1",
        request={"audio": {"voice": voice}},
        media=[],
        upstream=upstream,
        parameters=parameters or ArParameters(),
        seed=1,
        capture=capture,
    )
