"""Valid files to begin from: what stages and clients write, and the corners of it."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import safetensors.numpy

from omni_jobs.payloads import AdditionalInformationPayload, Manifest, Payload, PromptEmbedsPayload, Tensor

__all__ = ["seeds"]


def seeds() -> list[bytes]:
    """Files of at most a few kB; the same ones in every run."""
    tensor = Tensor.from_numpy
    rows = np.linspace(-2, 2, 24, dtype=np.float32).reshape(4, 6)
    every_dtype = {
        name: tensor(np.arange(6).reshape(2, 3).astype(name))
        for name in ("bool", "uint8", "int8", "uint16", "int16", "float16", "uint32", "int32", "float32")
    }
    every_dtype |= {name: tensor(np.arange(3).astype(name)) for name in ("uint64", "int64", "float64")}
    every_dtype["bfloat16"] = Tensor("BF16", (2, 2), memoryview(bytes(range(8))))
    thinker: dict[str, Any] = {
        "hidden_states": tensor(rows),
        "mrope_positions": tensor(np.arange(12).reshape(3, 4)),
        "token_ids": tensor(np.arange(4)),
    }
    deep: Any = 0
    for _ in range(15):
        deep = [deep]
    return [
        _written(thinker, {"mrope_delta": -3, "prompt_tokens": 4, "voice": "Chelsie"}),
        _written({"codes": tensor(np.array([17, 4, 8292]))}, {"voice": "Ethan"}),
        _written(every_dtype, {}),
        _written(
            {
                "list": [tensor(np.array([True, False])), tensor(np.zeros((0, 3), np.float16)), tensor(np.array(1.0))],
                "dict": {"x": tensor(np.arange(5, dtype=np.int16)), "y": tensor(np.zeros((1,) * 8, np.uint8))},
                "empty_list": [],
                "empty_dict": {},
            },
            {"text": '你好 🎉 "\\\x00', "numbers": [2**64 - 1, -(2**63), 1e300, -0.0], "deep": deep, "n": {"": None}},
            embeds=rows,
        ),
        _written({}, {}),
        b"".join(Payload(Manifest("bytes", "job-1", "first", 1)).buffers()),
        b"".join(Payload(Manifest("embeds", "job-1", "first", 2**63 - 1), PromptEmbedsPayload(tensor(rows))).buffers()),
        PromptEmbedsPayload(tensor(rows)).encode(),
        PromptEmbedsPayload(Tensor("BF16", (2, 4), memoryview(bytes(16)))).encode(),
        PromptEmbedsPayload(tensor(np.zeros((0, 6), np.float64))).encode(),
        safetensors.numpy.save({"prompt_embeds": rows.astype(np.float16)}, {"format": "pt"}),
        safetensors.numpy.save({"weight": rows, "bias": rows[0]}, {"format": "pt"}),
    ]


def _written(
    tensors: Mapping[str, Any], values: Mapping[str, Any], *, embeds: np.ndarray[Any, Any] | None = None
) -> bytes:
    prompt_embeds = None if embeds is None else PromptEmbedsPayload(Tensor.from_numpy(embeds))
    manifest = Manifest("hidden_states", "job-0198", "thinker", 1)
    return b"".join(Payload(manifest, prompt_embeds, AdditionalInformationPayload(tensors, values)).buffers())
