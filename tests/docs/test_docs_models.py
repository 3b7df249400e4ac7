"""docs/models.md and docs/models/ show the packages of examples/ as they stand there, and all fields that there are."""

import ast
import re
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest

from omni_jobs.pipelines.declarations import (
    FAMILIES,
    RUNNERS,
    ComponentDeclaration,
    Family,
    ProcessorDeclaration,
    RunnerDeclaration,
)
from omni_jobs.pipelines.flows import _OURS, FLOWS, Flow, TensorField, ValueField
from omni_jobs.pipelines.outputs import OUTPUTS, Output, OutputFormat, output
from omni_jobs.pipelines.plugins import names
from workers.runners.ar.component import ArComponent
from workers.runners.base_runner import BaseRunner
from workers.runners.diffusion.model import Cost, RowOutput
from workers.runners.in_process_runner import InProcessRunner
from workers.runners.pooling.component import PoolingComponent
from workers.runners.runner import Runner, TellingRunner
from workers.stages.types import OmniModelRunnerOutput, Progress, StageInput

ROOT = Path(__file__).parents[2]
CHOICE = (ROOT / "docs" / "models.md").read_text(encoding="utf-8")
PAGES = {path.stem: path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs" / "models").glob("*.md"))}
MODELS = "\n".join((CHOICE, *PAGES.values()))
WALKS = {"language-model": "questions", "stages": "tinted", "diffusion": "pastel", "runner": "plotter"}
FILES = {"toml": "pyproject.toml", "yaml": "*.yaml", "python": "*/*.py"}
DECLARATIONS = [
    Family, ComponentDeclaration, ProcessorDeclaration, RunnerDeclaration, Flow, TensorField, ValueField, Output,
    OutputFormat, ArComponent, PoolingComponent, Cost, RowOutput, Progress, StageInput, OmniModelRunnerOutput,
]  # fmt: skip


def blocks(text: str) -> list[tuple[str, str]]:
    return re.findall(r"^```(\w+)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


SHOWN = [(walk, *block) for walk, page in PAGES.items() for block in blocks(page)]


def test_each_example_has_a_page() -> None:
    assert PAGES.keys() == WALKS.keys()
    assert {*WALKS.values()} == {path.parent.name for path in (ROOT / "examples").glob("*/pyproject.toml")}
    assert {*re.findall(r"\]\(models/([\w-]+)\.md", CHOICE)} == PAGES.keys()


@pytest.mark.parametrize("walk", WALKS)
def test_each_page_begins_with_its_example_and_shows_blocks_of_every_kind(walk: str) -> None:
    assert f"](../../examples/{WALKS[walk]}/README.md)" in PAGES[walk].split("\n\n")[1]
    assert {language for language, _ in blocks(PAGES[walk])} >= set(FILES)


def test_no_code_stands_outside_of_the_pages() -> None:
    assert blocks(CHOICE) == []


@pytest.mark.parametrize(("walk", "language", "block"), SHOWN)
def test_the_shown_code_is_the_examples(walk: str, language: str, block: str) -> None:
    assert file_of(walk, language, block) is not None


def file_of(walk: str, language: str, block: str) -> Path | None:
    """The file of the walk's example, or of omni-jobs, in which a block stands."""
    files = [*(ROOT / "examples" / WALKS[walk]).glob(FILES[language]), *(ROOT / "workers" / "models").glob("*/*.py")]
    return next((path for path in files if block in path.read_text(encoding="utf-8")), None)


def imported(code: str) -> set[str]:
    """The names that a module imports."""
    found = [node for node in ast.parse(code).body if isinstance(node, ast.Import | ast.ImportFrom)]
    return {(alias.asname or alias.name).partition(".")[0] for node in found for alias in node.names}


@pytest.mark.parametrize("walk", WALKS)
def test_what_shown_code_needs_is_imported_before_it(walk: str) -> None:
    known: set[str] = set()
    for language, block in blocks(PAGES[walk]):
        if language == "python":
            if re.match(r"(import|from) ", block):
                known |= imported(block)
            path = file_of(walk, language, block)
            assert path is not None
            names = imported(path.read_text(encoding="utf-8"))
            assert {name for name in names if re.search(rf"\b{name}\b", block)} <= known, block
    assert known


def test_the_members_of_a_runner_are_all_there() -> None:
    table = PAGES["runner"].partition("| Member of `Runner` |")[2].partition("\n\n")[0]
    members = [name for name in vars(Runner) if name == "__init__" or not name.startswith("_")]
    assert re.findall(r"^\| `(\w+)", table, re.MULTILINE) == members


def test_the_members_of_the_base_of_runners_are_all_there() -> None:
    table = PAGES["runner"].partition("| Member of `InProcessRunner` |")[2].partition("\n\n")[0]
    members = {name for kind in (BaseRunner, InProcessRunner) for name in vars(kind) if not name.startswith("_")}
    members -= set(vars(TellingRunner))
    members -= set(vars(Runner))
    assert set(re.findall(r"^\| `(\w+)\(", table, re.MULTILINE)) == members


@pytest.mark.parametrize("walk", WALKS)
def test_all_entry_points_of_an_example_are_shown(walk: str) -> None:
    text = (ROOT / "examples" / WALKS[walk] / "pyproject.toml").read_text(encoding="utf-8")
    [shown] = [block for language, block in blocks(PAGES[walk]) if language == "toml"]
    assert text.endswith(shown)


def test_the_groups_are_all_there() -> None:
    groups = re.findall(r"^\| `(omni_jobs\.\w+)` \| .* \| an? `(\w+)`:", CHOICE, re.MULTILINE)
    assert groups == [
        (FAMILIES, "Family"), (RUNNERS, "RunnerDeclaration"), (FLOWS, "Flow"), (OUTPUTS, "Output")
    ]  # fmt: skip


@pytest.mark.parametrize("declaration", DECLARATIONS)
def test_the_fields_of_a_declaration_are_all_there(declaration: type[Any]) -> None:
    heading = rf"^\| Field of `{declaration.__name__}` \| Default .*?\n\n"
    [table] = re.findall(heading, MODELS, re.DOTALL | re.MULTILINE)
    rows = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \| (.*?) ?\|", table, re.MULTILINE)
    shown = [(name, default) for names, default in rows for name in re.findall(r"\w+", names)]
    known = defaults(declaration)
    assert [name for name, _ in shown] == list(known)
    assert [name for name, default in shown if not default] == [name for name in known if known[name] is MISSING]
    of_bools = {name: default for name, default in shown if default in ("true", "false")}
    assert of_bools == {name: str(value).lower() for name, value in known.items() if isinstance(value, bool)}


def defaults(declaration: type[Any]) -> dict[str, Any]:
    """The fields of a dataclass or named tuple with their defaults, MISSING for none; None: a factory's."""
    if not is_dataclass(declaration):
        return {name: declaration._field_defaults.get(name, MISSING) for name in declaration._fields}
    made = {field.name for field in fields(declaration) if field.default_factory is not MISSING}
    return {field.name: None if field.name in made else field.default for field in fields(declaration)}


def test_every_flow_of_ours_is_shown_with_all_its_fields_and_outputs() -> None:
    for ours in _OURS:
        [row] = re.findall(rf"^\| `{ours.name}` \|(.*)\|$", section_of_flows(), re.MULTILINE)
        tensors, values, outputs = ({*re.findall(r"`(\w+)`", cell)} for cell in row.split("|"))
        assert tensors - {"text"} == set(ours.tensors) - {"text"}
        assert values == set(ours.values)
        assert outputs == {name for name in names(OUTPUTS) if output(name).flow == ours.name}


def section_of_flows() -> str:
    return PAGES["stages"].partition("| Flow | Tensors |")[2].partition("\n\n")[0]
