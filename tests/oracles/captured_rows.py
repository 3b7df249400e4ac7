"""What ``examples/rows`` prints and writes, against Transformers on the CPU."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

NEW_TOKENS = 8


def check_rows(checkpoint: Path, written: Mapping[str, torch.Tensor], printed: str, tolerance: float = 1e-4) -> None:
    """Check the tokens and rows of a file, and what was printed of them."""
    from transformers import AutoModelForCausalLM

    token_ids, rows = written["token_ids"], written["hidden_states"]
    model: Any = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()
    with torch.inference_mode():
        expected = model.model(token_ids[None, :-1]).last_hidden_state[0]
        logits = model.lm_head(expected[-NEW_TOKENS:])
    assert rows.shape == expected.shape
    assert torch.allclose(rows.float(), expected, rtol=0, atol=tolerance)
    said = logits.gather(1, token_ids[-NEW_TOKENS:, None])[:, 0]
    assert bool((said >= logits.amax(dim=1) - 100 * tolerance).all())  # each the likeliest, or next to it
    prompt_tokens = len(token_ids) - NEW_TOKENS
    told = f"{prompt_tokens} tokens of the prompt, {NEW_TOKENS} of the answer: {list(rows.shape)} {rows.dtype}"
    assert told in printed
