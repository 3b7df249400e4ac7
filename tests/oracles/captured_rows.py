"""What ``examples/rows`` prints and writes, against Transformers on the CPU."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

TOLERANCE = 1e-4


def check_rows(checkpoint: Path, written: Mapping[str, torch.Tensor], printed: str) -> None:
    """Check the tokens and rows of a file, and what was printed of them."""
    from transformers import AutoModelForCausalLM

    token_ids, rows = written["token_ids"], written["hidden_states"]
    model: Any = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()
    with torch.inference_mode():
        expected = model.model(token_ids[None, :-1]).last_hidden_state[0]
        said = model.lm_head(expected[-8:]).argmax(dim=1)
    assert rows.shape == expected.shape
    assert torch.allclose(rows.float(), expected, rtol=0, atol=TOLERANCE)
    assert said.tolist() == token_ids[-8:].tolist()
    told = f"{len(token_ids) - 8} tokens of the prompt, 8 of the answer: {list(rows.shape)} {rows.dtype}"
    assert told in printed
