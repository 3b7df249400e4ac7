"""Devices: never the CPU of a host that is set up for an NVIDIA device, and an error that says why not that.

The hosts are directories that look like one; no test here has a GPU.
"""

from pathlib import Path

import pytest

pytest.importorskip("torch")

from omni_jobs.errors import ConfigError
from omni_jobs.pipelines.loader import load_pipeline
from omni_jobs.settings import Settings
from workers.stages.devices import NvidiaHost, TorchBuild, resolve_device
from workers.stages.engine_args import OmniEngineArgs, OmniModelConfig

CPU_BUILD = TorchBuild(cuda=None)
CUDA_BUILD = TorchBuild(cuda="13.0")
OLD_DRIVER = TorchBuild(cuda="13.0", error="The NVIDIA driver on your system is too old (found version 12080).")
OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (dvs-builder@U22)"
CLOSED = (
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.133.20  Sun Mar 30 20:51:20 UTC 2025\nGCC version: gcc 12.2.0"
)


def host(root: Path, *, driver: str | None = None, nodes: int = 0, cards: int = 0) -> NvidiaHost:
    """As it is read from files under ``root``."""
    _write(root / "sys/bus/pci/devices/0000:00:1f.0/vendor", "0x8086\n")
    _write(root / "sys/bus/pci/devices/0000:00:1f.0/class", "0x060100\n")
    for number in range(cards):
        _write(root / f"sys/bus/pci/devices/0000:0{number}:00.0/vendor", "0x10de\n")
        _write(root / f"sys/bus/pci/devices/0000:0{number}:00.0/class", "0x030200\n")
        _write(root / f"sys/bus/pci/devices/0000:0{number}:00.1/vendor", "0x10de\n")
        _write(root / f"sys/bus/pci/devices/0000:0{number}:00.1/class", "0x040300\n")  # its sound
    if driver is not None:
        _write(root / "proc/driver/nvidia/version", driver)
    for number in range(nodes):
        _write(root / f"dev/nvidia{number}", "")
    if nodes:
        _write(root / "dev/nvidiactl", "")
    return NvidiaHost.here(root)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def resolved(wanted: str, build: TorchBuild, found: NvidiaHost) -> tuple[str, int | None]:
    return resolve_device(wanted, "thinker", build=lambda: build, host=lambda: found)


def test_what_is_there_is_read_from_the_system(tmp_path: Path) -> None:
    assert host(tmp_path / "none") == NvidiaHost(None, (), 0)
    full = host(tmp_path / "full", driver=OPEN, nodes=2, cards=2)
    assert full == NvidiaHost("580.95.05", ("/dev/nvidia0", "/dev/nvidia1"), 2)
    assert host(tmp_path / "closed", driver=CLOSED).driver == "570.133.20"
    assert host(tmp_path / "odd", driver="something else").driver == "unknown"


@pytest.mark.parametrize("build", [CPU_BUILD, CUDA_BUILD], ids=["cpu build", "cuda build"])
def test_auto_is_the_cpu_where_nothing_speaks_for_a_gpu(build: TorchBuild, tmp_path: Path) -> None:
    assert resolved("auto", build, host(tmp_path)) == ("cpu", None)


def test_a_desktops_card_without_driver_does_not_bind_a_build_for_cpus(tmp_path: Path) -> None:
    assert resolved("auto", CPU_BUILD, host(tmp_path, cards=1)) == ("cpu", None)


def test_a_usable_device_is_used(tmp_path: Path) -> None:
    usable = TorchBuild(cuda="13.0", devices=2)
    for wanted, found in {"auto": None, "cuda": None, "cuda:1": 1}.items():
        assert resolved(wanted, usable, host(tmp_path)) == ("cuda", found)
    assert resolved("cpu", usable, host(tmp_path)) == ("cpu", None)
    with pytest.raises(ConfigError, match="no device cuda:2: 2 CUDA devices are visible"):
        resolved("cuda:2", usable, host(tmp_path))


@pytest.mark.parametrize("wanted", ["auto", "cuda", "cuda:0"])
@pytest.mark.parametrize(
    ("build", "there", "said"),
    [
        (CPU_BUILD, {"driver": OPEN, "nodes": 1}, ["torch is a build for CPUs", "580.95.05", "omni-jobs[worker-cuda]"]),
        (
            OLD_DRIVER,
            {"driver": CLOSED, "nodes": 1, "cards": 1},
            ["CUDA 13.0", "580 or later", "570.133.20", "too old", "update the host's NVIDIA driver"],
        ),
        (
            CUDA_BUILD,
            {"driver": OPEN, "cards": 1},  # a container without the runtime sees the host's /proc and /sys
            ["580.95.05", "no device file", "NVIDIA Container Toolkit", "--gpus", "capabilities"],
        ),
        (CUDA_BUILD, {"cards": 1}, ["no NVIDIA driver", "/proc/driver/nvidia/version", "install the NVIDIA driver"]),
        (CUDA_BUILD, {"driver": OPEN, "nodes": 1}, ["/dev/nvidia0", "nvidia-smi", "CUDA_VISIBLE_DEVICES"]),
    ],
    ids=["cpu build", "old driver", "no runtime", "no driver", "hidden"],
)
def test_a_gpu_that_torch_cannot_use_is_an_error_that_says_why(
    wanted: str, build: TorchBuild, there: dict[str, object], said: list[str], tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as caught:
        resolved(wanted, build, host(tmp_path, **there))  # type: ignore[arg-type]
    assert (caught.value.field, caught.value.stage) == ("device", "thinker")
    for part in said:
        assert part in caught.value.message
    assert ("OMNI_JOBS_DEVICE=cpu" in caught.value.message) == (wanted == "auto")


def test_cuda_said_and_nothing_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="device cuda: torch has no CUDA device; torch is a build for CPUs"):
        resolved("cuda", CPU_BUILD, host(tmp_path))
    with pytest.raises(ConfigError, match=r"no NVIDIA driver.*580 or later"):
        resolved("cuda", CUDA_BUILD, host(tmp_path))


PIPELINE = load_pipeline(Path(__file__).parents[3] / "stage_configs" / "qwen2_5_omni.yaml")
MODEL = OmniModelConfig(Path("/nowhere"), "qwen2_5_omni", "thinker")


def args(device: str, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> tuple[str, OmniEngineArgs]:
    """The device that is asked for, and the arguments on a host with two GPUs."""
    asked: list[str] = []

    def resolve(wanted: str, stage: str) -> tuple[str, int | None]:
        asked.append(wanted)
        return resolve_device(wanted, stage, build=lambda: TorchBuild("13.0", 2), host=lambda: NvidiaHost(None, (), 0))

    monkeypatch.setattr("workers.stages.engine_args.resolve_device", resolve)
    stage = PIPELINE.stage("thinker").model_copy(update={"device": device})
    found = OmniEngineArgs.for_stage(stage, MODEL, settings)
    return asked[0], found


@pytest.mark.parametrize(
    ("config", "setting", "asked"),
    [
        ("auto", "auto", "auto"),
        ("cpu", "auto", "cpu"),
        ("auto", "cuda", "cuda"),
        ("cuda:1", "cuda", "cuda:1"),
        ("cpu", "cuda", "cuda"),
        ("cuda:1", "cpu", "cpu"),
    ],
)
def test_the_setting_stands_over_the_stage_config(
    config: str, setting: str, asked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMNI_JOBS_DEVICE", setting)
    assert args(config, Settings(), monkeypatch)[0] == asked


def test_a_workers_share_of_its_gpu_is_a_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMNI_JOBS_DEVICE", "auto")
    assert args("cuda", Settings(), monkeypatch)[1].engine.vllm_args("cuda")["gpu_memory_utilization"] == 0.55
    monkeypatch.setenv("OMNI_JOBS_GPU_MEMORY_UTILIZATION", "0.45")
    assert args("cuda", Settings(), monkeypatch)[1].engine.vllm_args("cuda")["gpu_memory_utilization"] == 0.45
    assert args("cpu", Settings(), monkeypatch)[1].engine.vllm_args("cpu").get("gpu_memory_utilization") != 0.45
