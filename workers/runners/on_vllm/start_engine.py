"""``start_engine``: vLLM's engine of a stage, started in processes of its own on the stage's device."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from workers.runners.engine_environment import lent_to_engines

if TYPE_CHECKING:
    from workers.stages.engine_args import OmniEngineArgs
    from workers.vllm_hooks.engine import Engine


async def start_engine(args: OmniEngineArgs, engine_args: Mapping[str, Any]) -> Engine:
    """Return the started engine of a stage, with its model loaded; ``engine_args`` are AsyncEngineArgs of vLLM.

    Raises ConfigError and EngineDead as ``Engine.start`` does.
    """
    return await asyncio.to_thread(_start, args, engine_args)


def _start(args: OmniEngineArgs, engine_args: Mapping[str, Any]) -> Engine:
    from workers.vllm_hooks.engine import Engine

    device = {} if args.device_index is None else {"device_ids": [args.device_index]}
    with lent_to_engines(args.device):  # vLLM starts its processes with this one's environment
        return Engine.start({**engine_args, **device})
