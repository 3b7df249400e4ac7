"""vLLM's LoRA functions for CPUs, corrected for rows without an adapter."""

import pytest
import torch
from vllm.lora.ops.torch_ops import lora_ops
from vllm.lora.punica_wrapper import punica_cpu

from workers.vllm_hooks.cpu_lora import OPERATIONS, skip_rows_without_adapter

IDS = torch.tensor([-1, 0, 1, -1])


@pytest.fixture(autouse=True)
def _corrected(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in OPERATIONS:
        for module in (lora_ops, punica_cpu):
            monkeypatch.setattr(module, name, getattr(module, name))  # what is there now comes back afterwards
    skip_rows_without_adapter()
    skip_rows_without_adapter()


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def test_rows_without_an_adapter_stay_as_they_are() -> None:
    inputs, down, up, output = normal(4, 6), normal(2, 1, 3, 6), normal(2, 1, 5, 3), normal(4, 5)
    expected = output.clone()
    for row, adapter in ((1, 0), (2, 1)):
        expected[row] += 2.0 * up[adapter, 0] @ (down[adapter, 0] @ inputs[row])
    for module in (lora_ops, punica_cpu):
        small, found = torch.zeros(4, 3), output.clone()
        module.bgmv_shrink(inputs, down, small, IDS, 2.0)
        module.bgmv_expand(small, up, found, IDS, add_inputs=True)
        assert torch.allclose(found, expected, atol=1e-6)
        assert torch.equal(found[[0, 3]], output[[0, 3]])


def test_an_expansion_alone_skips_them_too() -> None:
    """As in an embedding, whose shrunk rows come from a table."""
    small, up, output = normal(4, 3), normal(2, 1, 5, 3), normal(4, 10)
    found = output.clone()
    lora_ops.bgmv_expand_slice(small, up, found, IDS, 5, 5, add_inputs=True)
    assert torch.equal(found[[0, 3]], output[[0, 3]])
    assert torch.equal(found[:, :5], output[:, :5])
    assert torch.allclose(found[2, 5:], output[2, 5:] + up[1, 0] @ small[2], atol=1e-6)


def test_a_prompt_of_many_rows_goes_the_same_way() -> None:
    """The functions for prompts call those for single rows."""
    inputs, up, output = normal(5, 3), normal(2, 1, 4, 3), normal(5, 4)
    found = output.clone()
    lengths = torch.tensor([3, 2])
    lora_ops.sgmv_expand(inputs, up, found, torch.tensor([0, 3]), lengths, torch.tensor([-1, 1]), 2, 3, 5, True)
    assert torch.equal(found[:3], output[:3])
    assert torch.allclose(found[3:], output[3:] + inputs[3:] @ up[1, 0].T, atol=1e-6)
