"""The ring of pinned buffers through which hidden states come to the host."""

import numpy as np
import pytest
import torch

from workers.runners.ar.captures import Capture, CopyRing

ROWS, WIDTH, STEPS = 32, 3584, 40


def test_rows_arrive_while_the_device_computes(device: torch.device) -> None:
    """Each step overwrites its rows as soon as the copy has begun, as the next forward of a model does."""
    if device.type != "cuda":
        pytest.skip("only a GPU has pinned copies")
    ring = CopyRing(ROWS)
    capture = Capture("key", ROWS, np.zeros(ROWS, dtype=np.bool_), ROWS * STEPS)
    rows = torch.empty(ROWS, WIDTH, dtype=torch.bfloat16, device=device)
    work = torch.randn(2048, 2048, device=device)
    for step in range(STEPS):
        work = (work @ work).clamp(-1, 1)  # the copy waits behind it
        rows.fill_(step)
        ring.push(rows.view(torch.uint8), [(capture, step * ROWS, 0, ROWS)])
    ring.flush()
    assert capture.missing(ROWS * STEPS) == []
    assert capture.rows is not None
    due = torch.arange(STEPS, dtype=torch.bfloat16).repeat_interleave(ROWS)[:, None].expand(-1, WIDTH)
    assert torch.equal(capture.rows.view(torch.bfloat16), due)
    assert ring.copies == STEPS
