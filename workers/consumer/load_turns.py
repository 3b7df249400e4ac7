"""``turn_to_load``: workers of one GPU load their models one after another.

vLLM measures the card's free memory before and after it loads, and takes what others load meanwhile for its own. A turn
is a lock on a file for each card, which the kernel gives back when its worker dies.
"""

import asyncio
import fcntl
import logging
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import BinaryIO
from urllib.parse import quote

from omni_jobs.errors import ConfigError

logger = logging.getLogger(__name__)

_POLL_S = 0.2  # the kernel's own wait would hold a thread that nothing can end
_NO_LIST = frozenset({"", "all", "none", "void"})


def card_names(indices: Iterable[int], environment: Mapping[str, str]) -> list[str]:
    """Return the cards behind the process's CUDA devices ``indices``, by the names that the whole host knows.

    These are the entries of ``CUDA_VISIBLE_DEVICES``, and in a container those of ``NVIDIA_VISIBLE_DEVICES``: numbers
    or UUIDs. Two workers of one card have to name it in one way.
    """
    names = [str(index) for index in indices]
    for variable in ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"):
        value = environment.get(variable, "").strip()
        shown = [] if value in _NO_LIST else [each.strip() for each in value.split(",")]
        names = [shown[int(name)] if name.isdecimal() and int(name) < len(shown) else name for name in names]
    return names


@asynccontextmanager
async def turn_to_load(directory: Path | None, cards: Iterable[str]) -> AsyncIterator[None]:
    """Hold the locks of these cards, in ``directory``; wait for those that other workers hold. None: hold nothing.

    Raises ConfigError when the directory cannot be used.
    """
    if directory is None:
        yield
        return
    with ExitStack() as held:
        for card in sorted(set(cards)):  # all workers in one order, or two would wait for each other
            try:
                directory.mkdir(parents=True, exist_ok=True, mode=0o700)
                file = held.enter_context((directory / f"{quote(card, safe='')}.lock").open("ab"))
            except OSError as error:
                raise ConfigError(f"no lock in {directory}: {error}", field="load_locks_dir") from error
            await _lock(file, card)
            # Closing the file is not enough, because an engine that was forked has it too.
            held.callback(fcntl.flock, file, fcntl.LOCK_UN)
        yield


async def _lock(file: BinaryIO, card: str) -> None:
    waits = False
    while True:
        try:
            return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not waits:
                logger.info("waiting: another worker loads its model on GPU %s", card)
                waits = True
            await asyncio.sleep(_POLL_S)
