"""A step's capture without an engine under it; tests/integration/runners/test_ar_*.py have one."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("vllm")

from omni_jobs.errors import ModelError
from workers.runners.ar.captures import CAPTURE, CAPTURE_ROWS, Capture, CopyRing
from workers.runners.ar.gpu_ar_model_runner import GPUARModelRunner
from workers.vllm_hooks.model_runner import AddedRequest

H = 4


class Model:
    """Embeds token n as n everywhere, and names what it is told to."""

    def __init__(self, named: dict[str, Any]) -> None:
        self._named = named

    def embed_input_ids(self, input_ids: torch.Tensor) -> torch.Tensor:
        return input_ids[:, None].expand(-1, H).float()

    def named_outputs(self, rows: torch.Tensor, prompt_tokens: int) -> dict[str, Any]:
        return self._named


class Runner(GPUARModelRunner):
    """The batch is what the test says it is."""

    def __init__(self, *, adds_embeddings: bool = True, named: dict[str, Any] | None = None) -> None:
        self.device, self.max_num_reqs, self.max_num_tokens = torch.device("cpu"), 8, 64
        self.set_up()
        self.adds_embeddings = adds_embeddings
        self._model = Model(named or {})

    def holds_output(self) -> bool:
        return True

    def get_model(self) -> Any:
        return self._model

    def add(self, name: str, prompt: int, media: tuple[int, ...] = (), *, capture: bool = True) -> None:
        places = [(offset, np.ones(1, dtype=np.bool_)) for offset in media]
        self.request_added(AddedRequest(name, prompt, 0, {CAPTURE: name, CAPTURE_ROWS: 64} if capture else {}, places))

    def step(self, *batch: tuple[str, int, int], embeds: torch.Tensor | None) -> None:
        """(request, computed so far, tokens now); the hidden state of the step's row n is 100 n."""
        counts = [count for _, _, count in batch]
        self.input_batch: Any = SimpleNamespace(
            req_ids=[name for name, _, _ in batch],
            num_computed_tokens_cpu=np.array([computed for _, computed, _ in batch], dtype=np.int32),
        )
        self.query_start_loc: Any = SimpleNamespace(np=np.cumsum([0, *counts, *[0] * 4]).astype(np.int32))
        rows = sum(counts)
        kept = self.before_forward(torch.arange(rows), embeds)
        if embeds is not None:
            embeds.fill_(-7)  # a fused norm works in place
        if kept is not None:
            self.after_forward(100.0 * torch.arange(rows)[:, None].expand(-1, H), kept)

    def rows_of(self, name: str, count: int) -> list[float]:
        capture = self.take(name)
        assert capture is not None
        assert capture.missing(count) == []
        assert capture.rows is not None
        assert torch.equal(capture.rows[:count], capture.rows[:count, :1].expand(-1, H))
        return capture.rows[:count, 0].tolist()


def embeds(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32)[:, None].repeat(1, H)


def test_an_empty_batch() -> None:
    runner = Runner()
    runner.step(embeds=None)
    runner.add("a", 2)
    runner.step(embeds=embeds())
    assert runner.stats()["captured_steps"] == 0
    assert runner.captures.held_bytes == 0


def test_a_row_is_hidden_state_and_embedding() -> None:
    runner = Runner()
    runner.add("a", 2)
    runner.step(("a", 0, 2), embeds=embeds(1, 2))
    runner.step(("a", 2, 1), embeds=embeds(3))
    assert runner.rows_of("a", 3) == [1, 102, 3]


def test_without_embeddings_it_is_the_hidden_state() -> None:
    runner = Runner(adds_embeddings=False)
    runner.add("a", 2)
    runner.step(("a", 0, 2), embeds=embeds(1, 2))
    assert runner.rows_of("a", 2) == [0, 100]


def test_a_model_without_media_embeds_its_tokens_itself() -> None:
    runner = Runner()
    runner.add("a", 3)
    runner.step(("a", 0, 3), embeds=None)
    assert runner.rows_of("a", 3) == [0, 101, 202]


def test_those_between_that_want_nothing_are_left_out() -> None:
    runner = Runner()
    for name in ("a", "b", "c"):
        runner.add(name, 2, capture=name != "b")
    runner.step(("a", 0, 2), ("b", 0, 2), ("c", 0, 2), embeds=embeds(1, 2, 3, 4, 5, 6))
    assert runner.rows_of("a", 2) == [1, 102]
    assert runner.rows_of("c", 2) == [405, 506]
    counts = runner.stats()
    assert (counts["captured_requests"], counts["captured_rows"], counts["captured_steps"]) == (2, 4, 1)


@pytest.mark.parametrize("cut", [1, 2, 3, 4])
def test_media_are_zero_however_the_prompt_is_cut(cut: int) -> None:
    runner = Runner()
    runner.add("a", 4, media=(0, 2))
    runner.add("b", 1)
    runner.step(("a", 0, cut), ("b", 0, 1), embeds=embeds(*range(1, cut + 1), 9))
    runner.step(("a", cut, 5 - cut), embeds=embeds(*range(cut + 1, 6)))
    hidden = [100 * (n if n < cut else n - cut) for n in range(5)]
    assert runner.rows_of("a", 5) == [h + e for h, e in zip(hidden, (0, 2, 0, 4, 5), strict=True)]
    assert runner.rows_of("b", 1) == [100 * cut + 9]


def test_what_a_model_names_goes_beside_the_rows() -> None:
    named = {"one": torch.zeros(1), "many": [torch.zeros(1)], "by_name": {"x": torch.zeros(1)}, "none": []}
    runner = Runner(named=named)
    assert list(runner.outputs_of(two_rows(), 2)) == [*named, "hidden_states"]


@pytest.mark.parametrize(
    ("name", "output"),
    [("token_ids", torch.zeros(1)), ("hidden_states", torch.zeros(1)), ("a", 3), ("a", [torch.zeros(1), 3])],
)
def test_outputs_that_cannot_be_handed_on_are_named(name: str, output: Any) -> None:
    with pytest.raises(ModelError) as caught:
        Runner(named={name: output}).outputs_of(two_rows(), 2)
    assert caught.value.field == name


def two_rows() -> Capture:
    capture = Capture("k", 1, np.zeros(1, dtype=np.bool_), max_rows=2)
    CopyRing(max_rows=2, buffers=0).push(torch.zeros(2, H), [(capture, 0, 0, 2)])
    return capture
