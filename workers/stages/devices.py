"""``resolve_device``: the device that a stage runs on, or an error that says why it cannot.

A host with an NVIDIA device must never serve on its CPU because its driver is too old or its container was started
without NVIDIA's runtime. If torch cannot use the device, the error names the torch, driver and device that were
found, and the change that is needed.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from omni_jobs.errors import ConfigError
from omni_jobs.pipelines.engine_settings import Device

logger = logging.getLogger(__name__)

# The least Linux driver of each major version of CUDA (NVIDIA's CUDA Compatibility guide: minor version compatibility).
_LEAST_DRIVER = {11: 450, 12: 525, 13: 580}
_NVIDIA = "0x10de"  # its PCI vendor id
_DISPLAY = "0x03"  # the PCI class of display controllers, 3D controllers among them


@dataclass(frozen=True, slots=True)
class TorchBuild:
    """The installed torch: the CUDA version it was built for, and the number of CUDA devices it can use."""

    cuda: str | None  # the CUDA version it was built with; None: a build for CPUs
    devices: int = 0
    error: str | None = None  # the CUDA runtime's message when it cannot start

    @classmethod
    def here(cls) -> TorchBuild:
        """Return the build of the torch in this process; where its CUDA cannot start, ``error`` says why."""
        import torch

        if torch.version.cuda is None or (devices := torch.cuda.device_count()):
            return cls(torch.version.cuda, 0 if torch.version.cuda is None else devices)
        try:
            torch.cuda.init()  # type: ignore[no-untyped-call]
        except (RuntimeError, AssertionError) as error:
            return cls(torch.version.cuda, 0, str(error).splitlines()[0])
        return cls(torch.version.cuda)


@dataclass(frozen=True, slots=True)
class NvidiaHost:
    """The signs of NVIDIA devices that this process can see without torch."""

    driver: str | None  # its version; None: no driver is loaded
    nodes: tuple[str, ...]  # device files of GPUs, which a container gets from NVIDIA's runtime
    cards: int  # NVIDIA's display and 3D controllers on the PCI bus

    @classmethod
    def here(cls, root: Path = Path("/")) -> NvidiaHost:
        """Return the signs that this host has; ``root`` is the directory of ``proc``, ``dev`` and ``sys``."""
        nodes = sorted(f"/dev/{path.name}" for path in root.glob("dev/nvidia[0-9]*"))
        cards = sum(
            _read(path / "vendor").strip() == _NVIDIA and _read(path / "class").startswith(_DISPLAY)
            for path in root.glob("sys/bus/pci/devices/*")
        )
        text = _read(root / "proc/driver/nvidia/version")
        version = re.search(r"\b(\d{3,}\.\d+(?:\.\d+)?)\b", text)
        return cls(version[1] if version else "unknown" if text else None, tuple(nodes), cards)

    def expects_cuda(self, build: TorchBuild) -> bool:
        """Return whether this host is meant to serve on CUDA, so that the CPU would be an unnoticed mistake.

        A driver or a device file shows that the host was set up for CUDA. A card alone may be a desktop's, on which
        torch's build for CPUs was installed on purpose.
        """
        return self.driver is not None or bool(self.nodes) or (build.cuda is not None and self.cards > 0)


def resolve_device(
    wanted: str,
    stage: str,
    *,
    build: Callable[[], TorchBuild] = TorchBuild.here,
    host: Callable[[], NvidiaHost] = NvidiaHost.here,
) -> tuple[Device, int | None]:
    """Return kind and index of the device that the stage ``wanted``; index None: torch's choice.

    ``cpu`` → ("cpu", None); ``cuda:1`` → ("cuda", 1); ``auto`` → cuda, or cpu where no NVIDIA device is expected.
    Raises ConfigError naming driver and runtime, or the number of devices, when the device cannot be used.
    """
    if wanted == "cpu":
        return "cpu", None
    torch_build = build()
    index = int(wanted.partition(":")[2]) if ":" in wanted else None
    if torch_build.devices > (index or 0):
        return "cuda", index
    if torch_build.devices:
        raise ConfigError(
            f"no device {wanted}: {torch_build.devices} CUDA devices are visible", field="device", stage=stage
        )
    nvidia = host()
    if wanted == "auto" and not nvidia.expects_cuda(torch_build):
        if torch_build.cuda is not None:
            logger.warning("%s runs on the CPU: no sign of an NVIDIA device or driver here", stage)
        return "cpu", None
    raise ConfigError(_explanation(wanted, torch_build, nvidia), field="device", stage=stage)


def _explanation(wanted: str, build: TorchBuild, host: NvidiaHost) -> str:
    """Return the error's message: the findings, the needs, and the first thing to do."""
    asked = f"device {wanted}: torch has no CUDA device"
    if wanted == "auto":
        asked = "device auto: this host is set up for an NVIDIA device and torch cannot use it"
    torch = "torch is a build for CPUs" if build.cuda is None else f"torch is built for CUDA {build.cuda}"
    if least := _least_driver(build):
        torch += f", which needs a driver of version {least} or later"
    driver = "no NVIDIA driver (/proc/driver/nvidia/version is missing)"
    if host.driver is not None:
        driver = f"NVIDIA driver {host.driver} (/proc/driver/nvidia/version)"
    nodes = f"device files {', '.join(host.nodes)}" if host.nodes else "no device file /dev/nvidia0"
    cuda = [f"CUDA says: {build.error}"] if build.error else []
    return "; ".join([asked, torch, f"found: {driver}, {nodes}", *cuda, *_advice(wanted, build, host)])


def _advice(wanted: str, build: TorchBuild, host: NvidiaHost) -> list[str]:
    """Return the first thing that must change, and for ``auto`` the way to serve on the CPU."""
    least, major = _least_driver(build), _major(host.driver)
    if build.cuda is None:
        todo = "install omni-jobs[worker-cuda] in place of omni-jobs[worker-cpu]"
    elif host.driver is None:
        todo = (
            f"install the NVIDIA driver on the host, version {least} or later" if least else "install NVIDIA's driver"
        )
    elif least and major is not None and major < least:
        todo = f"update the host's NVIDIA driver to version {least} or later"
    elif not host.nodes:
        todo = (
            "a container needs the NVIDIA Container Toolkit and its devices: docker run --gpus, or in Compose "
            "devices with driver nvidia and capabilities [gpu]"
        )
    else:
        todo = "check nvidia-smi, CUDA_VISIBLE_DEVICES and NVIDIA_VISIBLE_DEVICES in this environment"
    return [todo] if wanted != "auto" else [todo, "or say OMNI_JOBS_DEVICE=cpu to serve on the CPU"]


def _least_driver(build: TorchBuild) -> int | None:
    major = _major(build.cuda)
    return None if major is None else _LEAST_DRIVER.get(major)


def _major(version: str | None) -> int | None:
    number = re.match(r"\d+", version or "")
    return int(number[0]) if number else None


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
