"""Payloads against what cannot be faster, and against other formats, in one run.

    python -m benchmarks.payloads --json FILE [--mib 256] [--runs 9] [--directory DIRECTORY] [--quick]

- Writing: ``LocalObjectStore.put`` as a worker does it, digest included, and ``Payload.write``
  without one, against a raw write of the same bytes; with a sync, against raw with a sync.
- Reading: ``read`` and ``Payload.decode``, against mapping the file and its digest alone.
- The table: the same tensors with safetensors, torch.save and msgpack (where it is installed),
  written to a file, and read back with a digest of the tensors' bytes, as ``read`` makes one.

The sides of a comparison alternate, each in turn first, and a ratio is of one round: both met the
same disk. Before each write the files are deleted and what is dirty is written out, so that none
pays for another. On a busy machine the ratios of CPU time tell more than those of the clock.
"""

import argparse
import importlib.util
import mmap
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
import torch
import xxhash
from rich.progress import Progress

from benchmarks.figures import Figure, figure, report
from omni_jobs.payloads import AdditionalInformationPayload, Manifest, Payload, Tensor
from omni_jobs.storage.local import LocalObjectStore
from omni_jobs.storage.object_store import ObjectRef

Arrays = dict[str, np.ndarray[Any, Any]]
Side = Callable[[], object]
KEY = "jobs/job-1/payloads/thinker/1"


class Files:
    """The same tensors, to be written to and read from one directory by every side."""

    def __init__(self, directory: Path, size: int, *, settle: bool) -> None:
        generator = np.random.default_rng(0)
        self.arrays: Arrays = {
            "hidden_states": generator.random((size // 8192, 1024), dtype=np.float32),
            "embeddings": generator.random((size // 8192, 1024), dtype=np.float32),
            "token_ids": np.arange(size // 8192),
        }
        tensors = {name: Tensor.from_numpy(array) for name, array in self.arrays.items()}
        self.payload = Payload(
            Manifest("hidden_states", "job-1", "thinker", 1),
            additional_information=AdditionalInformationPayload(tensors, {"voice": "Chelsie"}),
        )
        self._directory = directory
        self._settle = settle
        self._stores = {
            sync: LocalObjectStore(directory / ("synced" if sync else "stored"), sync=sync) for sync in (False, True)
        }
        self._raw = b"".join(self.payload.buffers())
        self._ref: ObjectRef | None = None

    # Writing

    def clear(self) -> None:
        """Not timed: none of the files is there, and nothing waits to be written to the disk."""
        for store in self._stores.values():
            store.delete([KEY])
        for path in self._directory.glob("file.*"):
            path.unlink()
        if self._settle:
            os.sync()

    def write_raw(self, *, sync: bool = False) -> None:
        fd = os.open(self._directory / "file.raw", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            rest = memoryview(self._raw)
            while rest:
                rest = rest[os.write(fd, rest) :]
            if sync:
                os.fdatasync(fd)
        finally:
            os.close(fd)

    def write(self) -> None:
        self._fresh().write(self._directory / "file.payload")

    def put(self, *, sync: bool = False) -> None:
        self._ref = self._stores[sync].put(KEY, self._fresh().buffers())

    def _fresh(self) -> Payload:
        """Whose header is not encoded yet."""
        return Payload(self.payload.manifest, None, self.payload.additional_information)

    # Reading

    def map_and_digest(self) -> None:
        with self._stores[False].path(KEY).open("rb") as file:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            xxhash.xxh3_128(data).hexdigest()
            data.close()

    def read_and_decode(self) -> None:
        ref = self._ref
        if ref is None:
            raise RuntimeError("nothing was put yet")
        data = self._stores[False].read(ref, max_bytes=len(self._raw))
        Payload.decode(data, len(self._raw), key=KEY, stage="talker")

    def path(self, name: str) -> Path:
        return self._directory / f"file.{name}"


def main() -> None:
    arguments = _arguments()
    directory = Path(tempfile.mkdtemp(prefix="omni-jobs-benchmark-", dir=arguments.directory))
    try:
        files = Files(directory, arguments.mib << 20, settle=not arguments.quick)
        with Progress() as progress:
            figures = _against_raw(files, arguments, progress) + _formats(files, arguments, progress)
    finally:
        shutil.rmtree(directory)
    report(figures, arguments.json)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--mib", type=int, default=256, help="size of the payload (default 256)")
    parser.add_argument("--runs", type=int, default=9, help="times each side, alternating (default 9)")
    parser.add_argument("--directory", type=Path, help="where to write (default: the directory for temporary files)")
    parser.add_argument("--quick", action="store_true", help="1 MiB, twice: that it runs")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.mib, arguments.runs = 1, 2
    return arguments


def _against_raw(files: Files, arguments: argparse.Namespace, progress: Progress) -> list[Figure]:
    def compare(what: str, ours: Side, raw: Side, at_most: float | None) -> list[Figure]:
        """In pairs, so that both sides of a ratio meet the same disk."""
        taken = _alternating(what, {"ours": ours, "raw": raw}, arguments.runs, progress, before=files.clear)
        name, _, other = what.partition(" / ")
        return [
            figure(f"{arguments.mib} MiB, {name}", "s", taken["ours"].wall_s),
            figure(f"{arguments.mib} MiB, {other} beside {name}", "s", taken["raw"].wall_s),
            figure(what, "×", _ratios(taken["ours"].wall_s, taken["raw"].wall_s), at_most=at_most),
            figure(f"{what}, CPU time", "×", _ratios(taken["ours"].cpu_s, taken["raw"].cpu_s)),
        ]

    figures = [
        *compare("Payload.write / raw write", files.write, files.write_raw, 1.3),
        *compare("put with digest / raw write", files.put, files.write_raw, 1.3),
        *compare(
            "put with digest and sync / raw write and sync",
            lambda: files.put(sync=True),
            lambda: files.write_raw(sync=True),
            None,
        ),
    ]
    files.put()
    sides = {"map": files.map_and_digest, "read": files.read_and_decode}
    taken = _alternating("read and decode / mmap and digest", sides, 3 * arguments.runs, progress)
    return [
        *figures,
        figure(f"{arguments.mib} MiB, read and decode", "s", taken["read"].wall_s),
        figure(f"{arguments.mib} MiB, mmap and digest", "s", taken["map"].wall_s),
        figure(
            "read and decode / mmap and digest", "×", _ratios(taken["read"].wall_s, taken["map"].wall_s), at_most=1.2
        ),
    ]


# Other formats


def _formats(files: Files, arguments: argparse.Namespace, progress: Progress) -> list[Figure]:
    tensors = {name: torch.from_numpy(array) for name, array in files.arrays.items()}

    def load_safetensors() -> None:
        _digest(safetensors.numpy.load_file(files.path("safetensors")))

    def load_torch() -> None:
        loaded = torch.load(files.path("torch"), weights_only=True)
        _digest({name: tensor.numpy() for name, tensor in loaded.items()})

    writing: dict[str, Side] = {
        "a payload, put with digest": files.put,
        "safetensors": lambda: safetensors.numpy.save_file(files.arrays, files.path("safetensors")),
        "torch.save": lambda: torch.save(tensors, files.path("torch")),
    }
    reading: dict[str, Side] = {
        "a payload, read and decoded": files.read_and_decode,
        "safetensors": load_safetensors,
        "torch.load": load_torch,
    }
    if importlib.util.find_spec("msgpack"):
        writing["msgpack"] = lambda: _write_msgpack(files.path("msgpack"), files.arrays)
        reading["msgpack"] = lambda: _digest(_read_msgpack(files.path("msgpack")))
    else:
        progress.console.print("msgpack is not installed: no figures of it")
    written = _alternating("formats, writing", writing, arguments.runs, progress, before=files.clear)
    for write in writing.values():
        write()
    read = _alternating("formats, reading", reading, arguments.runs, progress)
    return [
        *(figure(f"written: {name}", "s", side.wall_s) for name, side in written.items()),
        *(figure(f"read with a digest: {name}", "s", side.wall_s) for name, side in read.items()),
    ]


def _digest(arrays: Mapping[str, np.ndarray[Any, Any]]) -> str:
    digest = xxhash.xxh3_128()
    for array in arrays.values():
        digest.update(array.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def _write_msgpack(path: Path, arrays: Arrays) -> None:
    import msgpack  # type: ignore[import-untyped, import-not-found, unused-ignore]

    packed = {
        name: (array.dtype.str, array.shape, array.reshape(-1).view(np.uint8).data) for name, array in arrays.items()
    }
    with path.open("wb") as file:
        msgpack.pack(packed, file)


def _read_msgpack(path: Path) -> Arrays:
    import msgpack

    found = msgpack.unpackb(path.read_bytes(), max_bin_len=2**32 - 1)
    return {name: np.frombuffer(data, dtype).reshape(shape) for name, (dtype, shape, data) in found.items()}


# Timing


@dataclass
class Taken:
    """Seconds of one side, round by round."""

    wall_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)


def _alternating(
    what: str, sides: Mapping[str, Side], runs: int, progress: Progress, *, before: Side | None = None
) -> dict[str, Taken]:
    """Every side in turn, each in turn first; a first round warms them and is dropped."""
    taken = {name: Taken() for name in sides}
    names = list(sides)
    for round_ in progress.track(range(runs + 1), description=what):
        shift = round_ % len(names)
        for name in names[shift:] + names[:shift]:
            if before is not None:
                before()
            wall, cpu = time.perf_counter(), time.process_time()
            sides[name]()
            if round_ > 0:
                taken[name].cpu_s.append(time.process_time() - cpu)
                taken[name].wall_s.append(time.perf_counter() - wall)
    return taken


def _ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    return [one / other for one, other in zip(ours, theirs, strict=True)]


if __name__ == "__main__":
    main()
