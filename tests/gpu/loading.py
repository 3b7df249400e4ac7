"""Load a stage's model as its worker does, in a process that has done nothing else, and print what that took as JSON.

    python -m tests.gpu.loading CHECKPOINT TINY FAMILY COMPONENT DEVICE stage|host

TINY is a small checkpoint of the family, which is loaded before, so that what libraries take is not counted. ``host``
loads the model into host memory and moves it to the device then, for comparison.
"""

import gc
import json
import sys
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from omni_jobs.pipelines.declarations import family
from omni_jobs.pipelines.plugins import named_object
from workers.runners.diffusion.engine_settings import DiffusionEngine
from workers.runners.diffusion.gpu_diffusion_worker import GPUDiffusionWorker
from workers.stages.engine_args import OmniEngineArgs, OmniModelConfig

_PAUSE_S = 0.002  # between two looks


class _HostPeaks:
    """The most host memory that this process held while it was open, in bytes.

    private  its own, which a limit on memory counts
    all      with pages of files that the kernel may take back at any time
    """

    def __init__(self) -> None:
        self.private = _status("RssAnon")
        self.all = 0
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> "_HostPeaks":
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # VmHWM begins anew
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._is_over.set()
        self._thread.join()
        self.all = _status("VmHWM")

    def _watch(self) -> None:
        while not self._is_over.wait(_PAUSE_S):
            self.private = max(self.private, _status("RssAnon"))


def _status(name: str) -> int:
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) << 10
    raise RuntimeError(f"no {name}")


def _worker(path: Path, name: str, component: str, device: torch.device) -> GPUDiffusionWorker:
    kind: Any = device.type
    model = OmniModelConfig(path, name, component)
    return GPUDiffusionWorker(OmniEngineArgs(component, model, kind, device.index, 4, DiffusionEngine()))


def main() -> None:
    path, tiny, name, component, where, way = sys.argv[1:]
    device = torch.device(where)
    load: Any = named_object(str(family(name).components[component].implementation), object)
    _worker(Path(tiny), name, component, device).load_model()
    model = OmniModelConfig(Path(path), name, component)
    worker = _worker(Path(path), name, component, device)
    gc.collect()
    on_device = torch.cuda.memory_allocated() if device.type == "cuda" else 0
    before = {"private": _status("RssAnon"), "all": _status("VmRSS")}
    with _HostPeaks() as peaks:
        begin = time.perf_counter()
        if way == "host":
            moved = load(model, torch.device("cpu"), "bfloat16")._transformer.to(device)
            assert moved.device.type == device.type
        else:
            worker.load_model()
        if device.type == "cuda":
            torch.cuda.synchronize()
        seconds = time.perf_counter() - begin
    found = {
        "seconds": seconds,
        "private": peaks.private - before["private"],
        "all": peaks.all - before["all"],
    }
    if device.type == "cuda":
        found["device"] = torch.cuda.memory_allocated() - on_device
        found["device_peak"] = torch.cuda.max_memory_reserved()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
