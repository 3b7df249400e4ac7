"""Writes the locks anew; called by scripts/lock. Arguments (``--upgrade …``) go to ``uv pip compile``."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from install import DEV_LOCK, LOCKS, PYTHON, ROOT, Command, pins, pip_configuration, uv_environment

HEADER = "# Made by scripts/lock from pyproject.toml, {extras}. Where packages come from is the installer's affair.\n"


def main(arguments: list[str]) -> None:
    write(DEV_LOCK, ["worker-cpu", "gguf", "dev"], arguments)
    for name, extras in (("core", []), ("worker-cuda", ["worker-cuda"])):
        lock = LOCKS / f"{name}.txt"
        seed(lock, keep=not arguments)
        write(lock, extras, [])


def seed(lock: Path, *, keep: bool) -> None:
    """What is tested is what is deployed: the resolver keeps the versions of the file that it is to write."""
    versions = pins(lock) if keep and lock.exists() else {}
    versions |= {name: version for name, version in pins(DEV_LOCK).items() if "+cpu" not in version}
    lock.write_text("".join(f"{name}=={version}\n" for name, version in versions.items()), encoding="utf-8")


def write(lock: Path, extras: list[str], arguments: list[str]) -> None:
    """Resolve for any Python 3.11 on Debian 12's glibc, whatever machine this is."""
    environment = uv_environment(pip_configuration(dict(os.environ)), dict(os.environ))
    if "worker-cpu" not in extras:
        environment.pop("UV_FIND_LINKS", None)  # a directory of CPU builds would win over the index's CUDA builds
    command: Command = [PYTHON, "-m", "uv", "pip", "compile", "--quiet", "pyproject.toml", "--output-file", lock]
    command += ["--no-header", "--no-annotate", "--no-emit-index-url", "--no-emit-find-links"]
    command += ["--python-version", "3.11", "--python-platform", "x86_64-manylinux_2_36", *arguments]
    for extra in extras:
        command += ["--extra", extra]
    subprocess.run(command, check=True, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL)
    described = "extras " + ", ".join(extras) if extras else "no extra"
    content = lock.read_text(encoding="utf-8")
    lock.write_text(HEADER.format(extras=described) + content, encoding="utf-8")
    print(f"locks/{lock.name}: {len(pins(lock))} packages")


if __name__ == "__main__":
    main(sys.argv[1:])
