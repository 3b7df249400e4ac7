"""A step's capture without an engine under it; tests/integration/runners/test_ar_*.py have one."""

from collections.abc import Collection
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("vllm")

from omni_jobs.errors import ConfigError, ModelError
from workers.runners.ar.captures import CAPTURE, CAPTURE_ROWS, Capture, CopyRing
from workers.runners.ar.gpu_ar_model_runner import GPUARModelRunner
from workers.runners.ar.row_layout import RowKind
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

    def __init__(
        self,
        *,
        adds_embeddings: bool = True,
        named: dict[str, Any] | None = None,
        layers: dict[str, int] | None = None,
        model: Any = None,
    ) -> None:
        self.device, self.max_num_reqs, self.max_num_tokens = torch.device("cpu"), 8, 64
        self.set_up()
        self.adds_embeddings = adds_embeddings
        self._model = model or Model(named or {})
        self._asked = layers or {}
        self.given: list[int] = []
        self.says_more = self.model_loaded()

    def hidden_row(self) -> tuple[torch.dtype, int]:
        return torch.float32, H

    def asked_layers(self) -> dict[str, int]:
        return self._asked

    def give_layers(self, layers: Collection[int]) -> None:
        self.given = list(layers)

    def holds_output(self) -> bool:
        return True

    def holds_inputs(self) -> bool:
        return True

    def is_pipelined(self) -> bool:
        return False

    def guesses(self) -> bool:
        return False

    def get_model(self) -> Any:
        return self._model

    def add(self, name: str, prompt: int, media: tuple[int, ...] = (), *, capture: bool = True) -> None:
        places = [(offset, np.ones(1, dtype=np.bool_)) for offset in media]
        self.request_added(AddedRequest(name, prompt, 0, {CAPTURE: name, CAPTURE_ROWS: 64} if capture else {}, places))

    def step(self, *batch: tuple[str, int, int], embeds: torch.Tensor | None, more: Any = None) -> None:
        """(request, computed so far, tokens now); the hidden state of the step's row n is 100 n.

        ``more``: what the forward pass returns beside it; None: nothing.
        """
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
            hidden = 100.0 * torch.arange(rows)[:, None].expand(-1, H)
            self.after_forward(hidden if more is None else (hidden, more), kept)

    def rows_of(self, name: str, count: int) -> list[float]:
        states = self.kinds_of(name, count)["hidden_states"]
        assert torch.equal(states, states[:, :1].expand(-1, H))
        return states[:, 0].tolist()

    def kinds_of(self, name: str, count: int) -> dict[str, Any]:
        capture = self.take(name)
        assert capture is not None
        assert capture.missing(count) == []
        return self.outputs_of(capture, count)


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


def test_inputs_of_layers_stand_beside_the_last_hidden_states() -> None:
    runner = Runner(layers={"late": 3, "early": 1, "again": 3, "embedded": 0})
    assert (runner.given, runner.says_more) == ([1, 3], True)
    for name in ("a", "b"):
        runner.add(name, 2, capture=name == "b")
    first, third = embeds(*range(10, 14)), embeds(*range(30, 34))
    runner.step(("a", 0, 2), ("b", 0, 2), embeds=embeds(1, 2, 3, 4), more=[first, third])
    kinds = runner.kinds_of("b", 2)
    found = {name: rows[:, 0].tolist() for name, rows in kinds.items()}
    assert found == {
        "hidden_states": [203, 304],
        "early": [12, 13],
        "late": [32, 33],
        "again": [32, 33],
        "embedded": [3, 4],
    }


def test_embeddings_alone_need_nothing_of_the_model() -> None:
    runner = Runner(layers={"embedded": 0}, adds_embeddings=False)
    assert not runner.says_more
    runner.add("a", 2)
    runner.step(("a", 0, 2), embeds=None)
    kinds = runner.kinds_of("a", 2)
    assert kinds["embedded"][:, 0].tolist() == [0, 1]
    assert kinds["hidden_states"][:, 0].tolist() == [0, 100]


class Coded(Model):
    """Gives two codes and a flag of each position beside its hidden states."""

    def __init__(self) -> None:
        super().__init__({"mean": torch.zeros(H)})

    def step_outputs(self) -> list[RowKind]:
        return [RowKind("codebooks", torch.int64, (2,), of_prompt=False), RowKind("flag", torch.bool)]

    def extract_multimodal_outputs(self, hidden_states: Any) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        hidden, more = hidden_states
        return hidden, {"codebooks": more, "flag": more[:, 0] > 4}


def test_what_a_model_gives_in_each_step_stands_beside_them() -> None:
    runner = Runner(model=Coded(), adds_embeddings=False)
    assert runner.says_more
    assert runner.row_bytes() == 2 * 8 + H * 4 + 1 + 7  # the widest dtype first, and its alignment
    runner.add("a", 3)
    runner.step(("a", 0, 3), embeds=None, more=torch.arange(6).view(3, 2))
    runner.step(("a", 3, 1), embeds=None, more=torch.tensor([[8, 9]]))
    kinds = runner.kinds_of("a", 4)
    assert kinds["codebooks"].tolist() == [[4, 5], [8, 9]], "from the prompt's last position on"
    assert kinds["flag"].tolist() == [False, False, False, True]
    assert kinds["hidden_states"][:, 0].tolist() == [0, 100, 200, 0]
    assert "mean" in kinds


def test_a_model_that_names_its_own_outputs_gives_no_other_layers() -> None:
    with pytest.raises(ConfigError, match="gives no other layers") as caught:
        Runner(model=Coded(), layers={"late": 3})
    assert caught.value.field == "engine.hidden_layers"


@pytest.mark.parametrize("name", ["hidden_states", "token_ids", "mrope_positions"])
def test_a_kind_has_no_name_of_the_runners_own(name: str) -> None:
    model = Coded()
    model.step_outputs = lambda: [RowKind(name, torch.int64)]  # type: ignore[method-assign]
    with pytest.raises(ValueError, match=f"rows of {name}, a name of the runner's own"):
        Runner(model=model)


def test_a_name_of_a_kind_is_no_name_of_an_output() -> None:
    model = Coded()
    model._named = {"flag": torch.zeros(1)}
    runner = Runner(model=model, adds_embeddings=False)
    runner.add("a", 1)
    runner.step(("a", 0, 1), embeds=None, more=torch.zeros(1, 2, dtype=torch.int64))
    with pytest.raises(ModelError) as caught:
        runner.kinds_of("a", 1)
    assert caught.value.field == "flag"


def two_rows() -> Capture:
    capture = Capture("k", 1, np.zeros(1, dtype=np.bool_), max_rows=2)
    CopyRing(max_rows=2, buffers=0).push(torch.zeros(2, H).view(torch.uint8), [(capture, 0, 0, 2)])
    return capture
