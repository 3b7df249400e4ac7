"""docs/models.md shows the packages of examples/ as they stand there, and all fields that there are."""

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
from workers.runners.diffusion.model import Cost, RowOutput
from workers.runners.in_process_runner import InProcessRunner
from workers.runners.pooling.component import PoolingComponent
from workers.runners.runner import Runner, TellingRunner
from workers.stages.types import OmniModelRunnerOutput, Progress, StageInput

ROOT = Path(__file__).parents[2]
MODELS = (ROOT / "docs" / "models.md").read_text(encoding="utf-8")
WALKS = {
    "A causal language model with prompts of its own": "questions",
    "Two stages with a flow of their own": "tinted",
    "A diffusion model of one's own": "pastel",
    "A runner of one's own": "plotter",
}
FILES = {"toml": "pyproject.toml", "yaml": "*.yaml", "python": "*/*.py"}
DECLARATIONS = [
    Family, ComponentDeclaration, ProcessorDeclaration, RunnerDeclaration, Flow, TensorField, ValueField, Output,
    OutputFormat, ArComponent, PoolingComponent, Cost, RowOutput, Progress, StageInput, OmniModelRunnerOutput,
]  # fmt: skip


def section(heading: str) -> str:
    found: str = re.split(r"^## ", MODELS.partition(f"\n## {heading}\n")[2], maxsplit=1, flags=re.MULTILINE)[0]
    return found


def blocks(text: str) -> list[tuple[str, str]]:
    return re.findall(r"^```(\w+)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


SHOWN = [(walk, *block) for walk in WALKS for block in blocks(section(walk))]


@pytest.mark.parametrize("walk", WALKS)
def test_each_walk_has_blocks_of_every_kind(walk: str) -> None:
    assert {language for language, _ in blocks(section(walk))} >= set(FILES)


def test_no_code_stands_outside_of_the_walks() -> None:
    assert len(blocks(MODELS)) == sum(len(blocks(section(walk))) for walk in WALKS)


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
    for language, block in blocks(section(walk)):
        if language == "python":
            if re.match(r"(import|from) ", block):
                known |= imported(block)
            path = file_of(walk, language, block)
            assert path is not None
            names = imported(path.read_text(encoding="utf-8"))
            assert {name for name in names if re.search(rf"\b{name}\b", block)} <= known, block
    assert known


def test_the_members_of_a_runner_are_all_there() -> None:
    table = section("A runner of one's own").partition("| Member of `Runner` |")[2].partition("\n\n")[0]
    members = [name for name in vars(Runner) if name == "__init__" or not name.startswith("_")]
    assert re.findall(r"^\| `(\w+)", table, re.MULTILINE) == members


def test_the_members_of_the_base_of_runners_are_all_there() -> None:
    table = section("A runner of one's own").partition("| Member of `InProcessRunner` |")[2].partition("\n\n")[0]
    members = {name for name in vars(InProcessRunner) if not name.startswith("_")} - set(vars(TellingRunner))
    members -= set(vars(Runner))
    assert set(re.findall(r"^\| `(\w+)\(", table, re.MULTILINE)) == members


@pytest.mark.parametrize("walk", WALKS)
def test_all_entry_points_of_an_example_are_shown(walk: str) -> None:
    text = (ROOT / "examples" / WALKS[walk] / "pyproject.toml").read_text(encoding="utf-8")
    [shown] = [block for language, block in blocks(section(walk)) if language == "toml"]
    assert text.endswith(shown)


def test_the_groups_are_all_there() -> None:
    groups = re.findall(r"^\| `(omni_jobs\.\w+)` \| .* \| an? `(\w+)`:", section("What a package names"), re.MULTILINE)
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


def test_links_lead_somewhere() -> None:
    targets = re.findall(r"\]\(([^)#]+)\)", MODELS)
    assert targets
    assert [target for target in targets if not (ROOT / "docs" / target).exists()] == []
    headings = [re.sub(r"[^\w -]", "", line).lower() for line in re.findall(r"^#+ (.*)", MODELS, re.MULTILINE)]
    assert {*re.findall(r"\]\(#([^)]+)\)", MODELS)} <= {heading.replace(" ", "-") for heading in headings}


def test_every_flow_of_ours_is_shown_with_all_its_fields_and_outputs() -> None:
    for ours in _OURS:
        [row] = re.findall(rf"^\| `{ours.name}` \|(.*)\|$", section_of_flows(), re.MULTILINE)
        tensors, values, outputs = ({*re.findall(r"`(\w+)`", cell)} for cell in row.split("|"))
        assert tensors - {"text"} == set(ours.tensors) - {"text"}
        assert values == set(ours.values)
        assert outputs == {name for name in names(OUTPUTS) if output(name).flow == ours.name}


def section_of_flows() -> str:
    return section("Two stages with a flow of their own").partition("| Flow | Tensors |")[2].partition("\n\n")[0]
