"""Lets torchvision be imported beside a CPU build of torch where only CUDA builds of torchvision can be had.

vLLM's Qwen2.5-Omni model needs the parts of torchvision that are plain Python, for audio alone too. A registry without
PyTorch's CPU builds gives a torchvision whose compiled operators cannot load (they want the CUDA runtime); importing it
then fails, because two of its modules register kernels for operators that do not exist. Those two modules are replaced
by empty ones; whatever calls a compiled operator still gets torchvision's own error. torchaudio and torchcodec are of
no use without their libraries: where those cannot load, the packages look absent.

It acts only beside a CPU build of torch, and only on what cannot load: with CPU builds of the three, or CUDA builds of
all, nothing changes. ``omni_jobs_vision_shim.pth`` installs the finder at the start of every Python process of the
environment, because vLLM inspects model classes in child processes. It decides nothing before one of the names below is
imported.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

__all__ = ["VisionShim", "install"]

# They register kernels for torchvision's compiled operators.
_REGISTRATIONS = frozenset({"torchvision._autograd_registrations", "torchvision._meta_registrations"})
_OPTIONAL = ("torchaudio", "torchcodec")
# Whoever asks whether the optional packages are there has imported or looked for one of these before.
_TRIGGERS = frozenset({"torch", "torchvision", "transformers", "vllm", *_OPTIONAL})
_CUDA_LIBRARIES = (b"libcudart.", b"libc10_cuda.so", b"libtorch_cuda.so")


class VisionShim:
    """Meta-path finder, and loader of the empty modules."""

    def __init__(self) -> None:
        self._optional_decided = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname in _REGISTRATIONS:
            return self._replacement(fullname)
        if fullname in _TRIGGERS and not self._optional_decided:
            self._optional_decided = True
            self._hide_optional()
            if fullname in sys.modules:  # it was looked for first of all
                raise ModuleNotFoundError(f"{fullname} is a CUDA build and torch a CPU build", name=fullname)
        return None

    def _replacement(self, fullname: str) -> ModuleSpec | None:
        # torchvision/__init__.py imports its extension first, so loading it has been tried.
        extension = sys.modules.get("torchvision.extension")
        if extension is None or extension._has_ops() or not _torch_is_cpu_build():
            return None
        from importlib.machinery import ModuleSpec

        return ModuleSpec(fullname, self, origin=__file__)  # type: ignore[arg-type]

    def _hide_optional(self) -> None:
        if _torch_is_cpu_build():
            for name in _OPTIONAL:
                if name not in sys.modules and _wants_cuda(name):
                    sys.modules[name] = None  # type: ignore[assignment]  # import and find_spec: not found

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        module.__doc__ = "Empty: torchvision's compiled operators cannot load here."


def _torch_is_cpu_build() -> bool:
    from importlib.machinery import PathFinder
    from os.path import dirname, exists, join

    torch = PathFinder.find_spec("torch")
    if torch is None or torch.origin is None:
        return False
    libraries = join(dirname(torch.origin), "lib")
    return not any(exists(join(libraries, f"libtorch_{device}.so")) for device in ("cuda", "hip", "xpu"))


def _wants_cuda(package: str) -> bool:
    """True when a library of the package is linked to the CUDA runtime."""
    from importlib.machinery import PathFinder
    from pathlib import Path

    spec = PathFinder.find_spec(package)
    for directory in (spec.submodule_search_locations if spec else None) or ():
        for library in sorted(Path(directory).rglob("*.so")):
            content = library.read_bytes()
            if any(name in content for name in _CUDA_LIBRARIES):
                return True
    return False


def install() -> None:
    if not any(isinstance(finder, VisionShim) for finder in sys.meta_path):
        sys.meta_path.insert(0, VisionShim())
