"""``start_engine``: vLLM's engine of a stage, started in processes of its own on the stage's device."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from workers.runners.engine_environment import engine_environment

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

    os.environ.update(engine_environment(args.device))  # vLLM starts its processes with this one's
    device = {} if args.device_index is None else {"device_ids": [args.device_index]}
    return Engine.start({**engine_args, **device})
