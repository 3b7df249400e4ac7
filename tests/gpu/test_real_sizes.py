"""A step of Qwen-Image's transformer at its real sizes with random weights in bfloat16: eager, as a graph, compiled.

As many of the 60 layers are made as the device has memory for, and the seconds are of those; a layer's share is said
too, because all layers take equally long.
"""

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.gpu.conftest import Record
from tests.gpu.rows import synchronize

LAYERS = 60
LAYER_BYTES = 680 << 20  # of a layer's weights in bfloat16
REST_BYTES = 12 << 30  # the other weights, activations of eight rows, and the graph's own memory
TEXT_TOKENS, TEXT_WIDTH, TOKEN = 64, 3584, 64
RUNS = 7


@pytest.fixture(scope="module")
def transformer(device: torch.device, quick: bool) -> Any:
    from diffusers import QwenImageTransformer2DModel

    small = {"num_attention_heads": 2, "attention_head_dim": 128} if quick else {}
    layers = 2 if quick else LAYERS
    if not quick:
        free, _ = torch.cuda.mem_get_info(device)
        layers = min(LAYERS, (free - REST_BYTES) // LAYER_BYTES)
        if layers < 1:
            pytest.skip("the device has no memory for a layer")
    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device(device):
            model = QwenImageTransformer2DModel(num_layers=int(layers), **small)
    finally:
        torch.set_default_dtype(before)
    return model.eval().requires_grad_(False)


def _inputs(device: torch.device, rows: int, side: int) -> dict[str, Any]:
    tokens = side // 16
    return {
        "hidden_states": torch.randn(rows, tokens * tokens, TOKEN, dtype=torch.bfloat16, device=device),
        "timestep": torch.full((rows,), 0.5, dtype=torch.bfloat16, device=device),
        "encoder_hidden_states": torch.randn(rows, TEXT_TOKENS, TEXT_WIDTH, dtype=torch.bfloat16, device=device),
        "encoder_hidden_states_mask": None,
        "img_shapes": [[(1, tokens, tokens)]] * rows,
        "return_dict": False,
    }


def _seconds(device: torch.device, call: Callable[[], object]) -> list[float]:
    found = []
    for run in range(RUNS + 2):
        synchronize(device)
        begin = time.perf_counter()
        call()
        synchronize(device)
        if run > 1:
            found.append(time.perf_counter() - begin)
    return found


@torch.inference_mode()
def test_a_step_with_more_rows(transformer: Any, device: torch.device, quick: bool, record: Record) -> None:
    """What batching over steps gains: the seconds of a step for each of its rows."""
    layers = transformer.config.num_layers
    for side in (64,) if quick else (512, 1024):
        for rows in (1, 2, 4, 8):
            inputs = _inputs(device, rows, side)
            seconds = _seconds(device, lambda inputs=inputs: transformer(**inputs))
            name = f"{side} x {side}, {layers} layers, a step of {rows}"
            record(f"{name}, for each row", "ms", [1000 * each / rows for each in seconds])


@torch.inference_mode()
def test_graphs_and_compiling(transformer: Any, device: torch.device, quick: bool, record: Record) -> None:
    """A CUDA graph and torch.compile, each beside the eager step, with the difference of their predictions."""
    inputs = _inputs(device, 1, 64 if quick else 512)
    eager = transformer(**inputs)[0].clone()
    name = f"{64 if quick else 512} pixels, {transformer.config.num_layers} layers, a step"
    record(f"{name}: eager", "ms", [1000 * each for each in _seconds(device, lambda: transformer(**inputs))])
    if device.type == "cuda":
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = transformer(**inputs)[0]
        record(f"{name}: CUDA graph", "ms", [1000 * each for each in _seconds(device, graph.replay)])
        assert torch.equal(captured, eager)
        del graph
    compiled = torch.compile(transformer)
    begin = time.perf_counter()
    difference = float((compiled(**inputs)[0] - eager).abs().max())
    record(f"{name}: compiling", "s", [time.perf_counter() - begin])
    record(f"{name}: compiled", "ms", [1000 * each for each in _seconds(device, lambda: compiled(**inputs))])
    record(f"{name}: compiled, largest difference", "", [difference])
    assert difference <= 0.1 * float(eager.abs().max())
