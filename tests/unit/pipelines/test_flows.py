"""Flows are contracts: a payload that keeps one has no problem, one that breaks it is told where."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from omni_jobs.errors import ConfigError, ModelError, PayloadCorrupt, PluginBroken
from omni_jobs.payloads import AdditionalInformationPayload, Manifest, Payload, PromptEmbedsPayload, Tensor
from omni_jobs.payloads.additional_information import TensorEntry
from omni_jobs.pipelines.flows import FLOWS, Flow, TensorField, ValueField, flow
from omni_jobs.pipelines.loader import load_pipeline
from omni_jobs.pipelines.parameters import StageParameters
from omni_jobs.pipelines.stage_config import Pipeline
from tests.unit.pipelines.test_declarations import installed
from workers.stages.stage import Stage
from workers.stages.types import OmniModelRunnerOutput, StageInput

NAMES = (
    *("bytes", "text", "token_ids", "embeds", "hidden_states", "codes", "code_frames", "waveform", "latents", "pixels"),
)
CONFIGS = Path(__file__).parents[3] / "stage_configs"


def payload(tensors: Mapping[str, TensorEntry], values: Mapping[str, Any] | None = None, embeds: Any = None) -> Payload:
    return Payload(
        Manifest(kind="any", job_id="job-1", stage="one", attempt=1),
        prompt_embeds=embeds,
        additional_information=AdditionalInformationPayload(tensors, values or {}),
    )


def tensor(*shape: int, dtype: Any = np.float32) -> Tensor:
    return Tensor.from_numpy(np.zeros(shape, dtype))


NAN = Tensor.from_numpy(np.full((16, 2, 2), np.nan, np.float32))


def hidden_states(rows: int = 9, prompt: int = 4, tokens: int = 6) -> dict[str, Any]:
    return {
        "tensors": {
            "hidden_states": tensor(rows, 8),
            "token_ids": tensor(tokens, dtype=np.int64),
            "mrope_positions": tensor(3, prompt, dtype=np.int64),
        },
        "values": {"prompt_tokens": prompt, "mrope_delta": -1, "voice": "Chelsie"},
    }


KEPT: dict[str, dict[str, Any]] = {
    "bytes": {"tensors": {"bytes": tensor(0, dtype=np.uint8)}},
    "text": {"tensors": {"text": tensor(5, dtype=np.uint8)}},
    "token_ids": {"tensors": {"token_ids": tensor(1, dtype=np.int64)}},
    "embeds": {"tensors": {"negative_prompt_embeds": tensor(2, 8)}, "embeds": PromptEmbedsPayload(tensor(3, 8))},
    "hidden_states": hidden_states(),
    "codes": {"tensors": {"codes": tensor(7, dtype=np.int64)}, "values": {"voice": "Ethan"}},
    "code_frames": {"tensors": {"frames": tensor(7, 16, dtype=np.int64)}, "values": {"voice": "Ethan"}},
    "waveform": {"tensors": {"waveform": tensor(480)}, "values": {"sampling_rate": 24_000}},
    "latents": {"tensors": {"latents": tensor(16, 8, 8)}},
    "pixels": {"tensors": {"pixels": tensor(2, 4, 6, 3, dtype=np.uint8)}, "values": {"frame_rate": 24}},
}


@pytest.mark.parametrize("name", NAMES)
def test_a_payload_that_keeps_its_flow_has_no_problem_and_one_without_its_data_has(name: str) -> None:
    contract = flow(name)
    assert contract.name == name
    assert contract.problem(payload(**KEPT[name])) is None
    problem = contract.problem(payload({}))
    assert problem is not None
    assert problem.message == "missing"
    more = KEPT[name] | {"tensors": {**KEPT[name]["tensors"], "further": [tensor(1), tensor(2)]}}
    assert contract.problem(payload(**more)) is None


@pytest.mark.parametrize(
    ("name", "tensors", "values", "field", "message"),
    [
        ("codes", {"codes": tensor(3)}, {}, "tensors.codes.dtype", "F32, not I64"),
        ("codes", {"codes": tensor(3, 1, dtype=np.int64)}, {}, "tensors.codes.shape", "rank 2, not 1"),
        ("codes", {"codes": [tensor(3, dtype=np.int64)]}, {}, "tensors.codes", "not one tensor"),
        ("codes", {"codes": tensor(3, dtype=np.int64)}, {"voice": 3}, "values.voice", "int, not str"),
        ("code_frames", {"frames": tensor(3, dtype=np.int64)}, {}, "tensors.frames.shape", "rank 1, not 2"),
        ("waveform", {"waveform": tensor(3)}, {}, "values.sampling_rate", "missing"),
        ("waveform", {"waveform": tensor(3)}, {"sampling_rate": 0}, "values.sampling_rate", "less than 1"),
        ("waveform", {"waveform": tensor(3)}, {"sampling_rate": True}, "values.sampling_rate", "bool, not int"),
        ("pixels", {"pixels": tensor(4, 6, 4, dtype=np.uint8)}, {}, "tensors.pixels.shape", r"\[4, 6, 4\] where"),
        ("pixels", {"pixels": tensor(6, dtype=np.uint8)}, {}, "tensors.pixels.shape", "rank 1, not 3 or 4"),
        ("latents", {"latents": tensor(12, 64)}, {}, "tensors.latents.shape", "rank 2, not 3"),
        ("latents", {"latents": NAN}, {}, "tensors.latents", "not finite"),
    ],
)
def test_a_payload_that_breaks_its_flow_is_told_where(
    name: str, tensors: dict[str, TensorEntry], values: dict[str, Any], field: str, message: str
) -> None:
    problem = flow(name).problem(payload(tensors, values))
    assert problem is not None
    assert problem.field == field
    assert re.search(message, problem.message)


def test_negative_prompt_embeds_are_optional_and_as_wide_as_the_others() -> None:
    embeds = PromptEmbedsPayload(tensor(3, 8))
    assert flow("embeds").problem(payload({}, embeds=embeds)) is None
    for made, field, message in (
        (tensor(2, 9), "shape", "9 hidden_size, and 8 elsewhere"),
        (tensor(8), "shape", "rank 1, not 2"),
        (tensor(2, 8, dtype=np.int64), "dtype", "I64, not"),
    ):
        problem = flow("embeds").problem(payload({"negative_prompt_embeds": made}, embeds=embeds))
        assert problem is not None
        assert problem.field == f"tensors.negative_prompt_embeds.{field}"
        assert message in problem.message


@given(rows=st.integers(1, 12), prompt=st.integers(1, 6), tokens=st.integers(1, 6), positions=st.integers(1, 6))
def test_rows_prompt_and_tokens_must_agree(rows: int, prompt: int, tokens: int, positions: int) -> None:
    given_ = hidden_states(rows, prompt, tokens)
    given_["tensors"]["mrope_positions"] = tensor(3, positions, dtype=np.int64)
    problem = flow("hidden_states").problem(payload(**given_))
    agrees = rows == prompt + tokens - 1 and positions == prompt
    assert (problem is None) == agrees
    if problem is not None:
        at = "hidden_states" if positions == prompt else "mrope_positions"
        assert problem.field == f"tensors.{at}.shape"


def test_embeddings_that_are_no_numbers_are_the_fault_of_the_stage_that_made_them() -> None:
    wrong = Tensor.from_numpy(np.full((3, 8), np.inf, np.float32))
    for embeds, negative, field in (
        (wrong, tensor(2, 8), "prompt_embeds"),
        (tensor(3, 8), wrong, "tensors.negative_prompt_embeds"),
    ):
        given_ = payload({"negative_prompt_embeds": negative}, embeds=PromptEmbedsPayload(embeds))
        assert flow("embeds").problem(given_) == ("an element is not finite", field)


# Flows of other packages.

OWN = """
from omni_jobs.pipelines.flows import Flow, TensorField
MEL = Flow("mel", {"mel": TensorField(frozenset({"F32"}), (("frames", 80),))})
"""


def test_a_flow_of_another_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(installed(tmp_path, {FLOWS: "mel = own_flow:MEL\nbroken = own_flow:NOTHING"})))
    (tmp_path / "site" / "own_flow.py").write_text(OWN, encoding="utf-8")
    assert flow("mel").problem(payload({"mel": tensor(4, 80)})) is None
    with pytest.raises(PluginBroken, match=r"'broken' of omni_jobs.flows cannot be loaded: AttributeError"):
        flow("broken")
    with pytest.raises(
        ConfigError, match="no such flow 'smell'; known: acoustic_features, begin_latents, broken, bytes, code_frames"
    ):
        flow("smell")


# What a stage makes of it.


def stage() -> Stage:
    pipeline = load_pipeline(CONFIGS / "echo.yaml")
    return Stage(pipeline, pipeline.stage("first"), None)


def test_an_output_that_breaks_its_flow_is_refused_when_written() -> None:
    first = stage()
    stage_input = first.input_of(job_id="job-1", request={}, media=(), upstream={}, seed=1, has_successors=True)
    lie = OmniModelRunnerOutput(multimodal_outputs={"bytes": np.zeros(3, np.float32)})
    with pytest.raises(ModelError, match="the output is no bytes: F32, not U8") as caught:
        first.finish(lie, stage_input)
    assert (caught.value.stage, caught.value.field) == ("first", "tensors.bytes.dtype")


@pytest.mark.parametrize(
    ("pixels", "message", "field"),
    [
        (np.zeros((8, 8, 3), np.float32), "the output is no pixels: F32, not U8", "tensors.pixels.dtype"),
        (np.zeros((3, 8, 8), np.uint8), r"\[3, 8, 8\] where \['height', 'width', 3\] is due", "tensors.pixels.shape"),
        ([np.zeros((8, 8, 3), np.uint8)], "not one tensor", "tensors.pixels"),
        (None, "missing", "tensors.pixels"),
    ],
)
def test_an_output_that_breaks_its_flow_is_not_encoded(pixels: Any, message: str, field: str) -> None:
    """A last stage writes no payload, and an encoder of another package may trust the contract."""
    stage = {"name": "draw", "kind": "echo", "processor": "echo", "produces": "bytes"}
    outputs = {"image": {"stage": "draw"}}
    pipeline = Pipeline.model_validate({"name": "drawn", "version": "1", "stages": {"draw": stage}, "outputs": outputs})
    draw = Stage(pipeline, pipeline.stage("draw"), None)
    asked = {"modalities": ["image"], "image": {"format": "png"}}
    stage_input = StageInput("job-1", asked, (), {}, StageParameters(), seed=1, capture=False)
    with pytest.raises(ModelError, match=message) as caught:
        draw.finish(OmniModelRunnerOutput(multimodal_outputs={"pixels": pixels}), stage_input)
    assert (caught.value.stage, caught.value.field) == ("draw", field)


def test_a_payload_that_breaks_its_flow_is_refused_when_read() -> None:
    pipeline = load_pipeline(CONFIGS / "echo.yaml")
    second = Stage(pipeline, pipeline.stage("second"), None)
    upstream = {"first": payload({"bytes": tensor(3)})}
    with pytest.raises(PayloadCorrupt, match="F32, not U8") as caught:
        second.input_of(job_id="job-1", request={}, media=(), upstream=upstream, seed=1, has_successors=False)
    assert (caught.value.stage, caught.value.field) == ("second", "tensors.bytes.dtype")


def test_an_optional_field_may_be_missing_and_must_fit_where_it_is() -> None:
    own = Flow(
        "own",
        {"mask": TensorField(frozenset({"BOOL"}), (("n",),), optional=True)},
        {"scale": ValueField(float, at_least=0.5, optional=True)},
    )
    assert own.problem(payload({}, {})) is None
    assert own.problem(payload({"mask": tensor(2, dtype=np.bool_)}, {"scale": 1})) is None
    assert own.problem(payload({"mask": tensor(2)}, {})) is not None
    assert own.problem(payload({}, {"scale": 0.1})) is not None
