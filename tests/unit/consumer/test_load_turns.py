import asyncio
import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from omni_jobs.errors import ConfigError
from omni_jobs.pipelines.loader import load_pipelines
from omni_jobs.settings import packaged_directory
from workers.consumer.load_turns import card_names, turn_to_load
from workers.stages.engine_args import OmniEngineArgs

HOLDER = """
import asyncio, os, signal, sys
from pathlib import Path
from workers.consumer.load_turns import turn_to_load

async def main():
    async with turn_to_load(Path(sys.argv[1]), sys.argv[2].split(",")):
        if os.fork() == 0:  # an engine, which has its worker's files
            os.close(1)
            os.close(0)
            signal.pause()
        print("loads", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
    print("loaded", flush=True)
    await asyncio.to_thread(sys.stdin.readline)

asyncio.run(main())
"""
WAIT_S = 60.0


class Holder:
    """Another worker's process, which loads its model on these cards until it is told that it has."""

    def __init__(self, directory: Path, cards: str) -> None:
        command = [sys.executable, "-c", HOLDER, str(directory), cards]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        assert self.says() == "loads"

    def says(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def load(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        assert self.says() == "loaded"

    def kill(self) -> None:
        os.killpg(self.process.pid, 9)
        self.process.communicate()


async def load(directory: Path, *cards: str) -> None:
    async with turn_to_load(directory, cards):
        pass


def is_held(directory: Path, card: str) -> bool:
    with (directory / f"{card}.lock").open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


@pytest.mark.parametrize("end", ["loads", "dies"])
def test_workers_of_one_card_load_one_after_another(end: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """And those of another card side by side with them. A dead worker's turn ends with its last process."""
    caplog.set_level("INFO")
    holder = Holder(tmp_path, "0,GPU-5f")

    async def others() -> None:
        await asyncio.wait_for(load(tmp_path, "1"), WAIT_S)
        waiting = asyncio.create_task(load(tmp_path, "1", "GPU-5f"))
        while "on GPU GPU-5f" not in caplog.text:
            await asyncio.sleep(0)
        assert not waiting.done()
        assert is_held(tmp_path, "1"), "of several cards each is held"
        if end == "loads":
            await asyncio.to_thread(holder.load)
        else:
            holder.kill()
        await asyncio.wait_for(waiting, WAIT_S)
        assert not is_held(tmp_path, "1")

    try:
        asyncio.run(others())
    finally:
        holder.kill()


def test_a_worker_that_is_stopped_while_it_waits_leaves_the_line(tmp_path: Path) -> None:
    holder = Holder(tmp_path, "1")

    async def stopped() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(load(tmp_path, "0", "1"), 0.5)
        assert not is_held(tmp_path, "0")

    try:
        asyncio.run(stopped())
    finally:
        holder.kill()


def test_a_directory_that_takes_no_lock_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError) as caught:
        asyncio.run(load(tmp_path / "file", "0"))
    assert caught.value.field == "load_locks_dir"


@pytest.mark.parametrize(
    ("indices", "environment", "names"),
    [
        ([0], {}, ["0"]),
        ([1, 2], {"CUDA_VISIBLE_DEVICES": ""}, ["1", "2"]),
        ([0], {"CUDA_VISIBLE_DEVICES": "3"}, ["3"]),
        ([0, 1], {"CUDA_VISIBLE_DEVICES": "2, GPU-5f"}, ["2", "GPU-5f"]),
        ([0], {"NVIDIA_VISIBLE_DEVICES": "all"}, ["0"]),
        ([0], {"NVIDIA_VISIBLE_DEVICES": "GPU-5f"}, ["GPU-5f"]),
        ([0], {"NVIDIA_VISIBLE_DEVICES": "4,5", "CUDA_VISIBLE_DEVICES": "1"}, ["5"]),
        ([7], {"CUDA_VISIBLE_DEVICES": "3"}, ["7"]),
    ],
)
def test_a_card_has_one_name_on_its_host(indices: list[int], environment: dict[str, str], names: list[str]) -> None:
    assert card_names(indices, environment) == names


@pytest.mark.parametrize(
    ("device", "index", "ranks", "devices"),
    [
        ("cuda", None, 1, [0]),
        ("cuda", 1, 1, [1]),
        ("cuda", None, 2, [0, 1]),
        ("cpu", None, 2, []),
        ("auto", None, 1, []),
    ],
)
def test_the_devices_of_an_engine(device: str, index: int | None, ranks: int, devices: list[int]) -> None:
    engine = load_pipelines(packaged_directory("stage_configs")).named("chat").stage("llm").engine_settings
    engine = engine.model_copy(update={"tensor_parallel_size": ranks})
    args = OmniEngineArgs("llm", None, device, index, 1, engine)  # type: ignore[arg-type]
    assert list(args.cuda_devices) == devices
