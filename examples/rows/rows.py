"""Capture the hidden states of one prompt with ``GPUARWorker``, in an engine of vLLM's own: no stage, no job, no queue.

python -m examples.rows.rows MODEL [TEXT] [--dtype float32] [--out FILE]
"""

import argparse
import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from workers.runners.ar.captures import CAPTURE, CAPTURE_ROWS
from workers.runners.spool import Spool

NEW_TOKENS = 8
KEY = "example"  # the request's, in the engine and in the spool


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="the checkpoint directory of a causal language model")
    parser.add_argument("text", nargs="?", default="A lighthouse stands", help="the prompt")
    parser.add_argument("--dtype", default="auto", help="of the weights and rows; vLLM takes float32 as bfloat16 else")
    parser.add_argument("--out", type=Path, help="write the tokens and their rows here, as safetensors")
    arguments = parser.parse_args()
    with started(arguments.model, arguments.dtype) as llm, closing(Spool()) as spool:
        prompt, answer, states = rows_of(llm, spool, arguments.text)
    print(f"{len(prompt)} tokens of the prompt, {len(answer)} of the answer: {list(states.shape)} {states.dtype}")
    if arguments.out is not None:
        save_file({"token_ids": torch.tensor([*prompt, *answer]), "hidden_states": states}, arguments.out)


@contextmanager
def started(model: Path, dtype: str) -> Iterator[Any]:
    """Context manager: give vLLM's ``LLM`` of a checkpoint, whose worker is ``GPUARWorker``."""
    os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "0"  # the worker's model runner stands on vLLM's V1
    from vllm import LLM

    llm: Any = LLM(
        str(model),
        worker_cls="workers.runners.ar.gpu_ar_worker.GPUARWorker",
        dtype=dtype,
        max_model_len=512,
        kv_cache_memory_bytes=64 << 20,
        enforce_eager=True,
        disable_log_stats=True,
    )
    try:
        yield llm
    finally:
        llm.llm_engine.engine_core.shutdown()


def rows_of(llm: Any, spool: Spool, text: str) -> tuple[list[int], list[int], torch.Tensor]:
    """Return the tokens of a prompt and of its answer, and the last hidden state of each but the last: [P + N - 1, H].

    Raises RuntimeError for what the worker could not do.
    """
    from vllm import SamplingParams

    # 0: no byte of the spool's file system has to stay free. False: a row is the hidden state alone.
    llm.collective_rpc("omni_start", args=(str(spool.directory), 0, False))
    asked = SamplingParams(
        temperature=0,
        max_tokens=NEW_TOKENS,
        ignore_eos=True,
        skip_reading_prefix_cache=True,  # tokens of the cache are not computed, so they have no rows
        extra_args={CAPTURE: KEY, CAPTURE_ROWS: 512},
    )
    (done,) = llm.generate([text], asked, use_tqdm=False)
    prompt, answer = list(done.prompt_token_ids), list(done.outputs[0].token_ids)
    for rank in llm.collective_rpc("omni_take", args=([(KEY, len(prompt) + len(answer) - 1, None)],)):
        if rank[0] is not None:
            raise RuntimeError(rank[0]["message"])
    tensors, _ = spool.read(KEY)
    return prompt, answer, tensors["hidden_states"].clone()


if __name__ == "__main__":
    main()
