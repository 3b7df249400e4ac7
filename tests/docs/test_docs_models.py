"""docs/models.md shows the example model as it stands in tests/example_model, which tests run."""

import re
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import pytest

from omni_jobs.pipelines.declarations import ComponentDeclaration, ProcessorDeclaration

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "tests" / "example_model"
MODELS = (ROOT / "docs" / "models.md").read_text(encoding="utf-8")
FILES = {"toml": "pyproject.toml", "yaml": "tinted.yaml", "python": "tinted/*.py"}
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", MODELS, re.DOTALL | re.MULTILINE)


def test_there_are_blocks_of_every_kind() -> None:
    assert {language for language, _ in BLOCKS} == set(FILES)


@pytest.mark.parametrize(("language", "block"), BLOCKS)
def test_the_shown_code_is_the_example_models(language: str, block: str) -> None:
    assert any(block in path.read_text(encoding="utf-8") for path in EXAMPLE.glob(FILES[language]))


def test_the_fields_of_a_component_are_all_there() -> None:
    [table] = re.findall(r"^\| Field \| Default .*?\n\n", MODELS, re.DOTALL | re.MULTILINE)
    shown = re.findall(r"^\| `(\w+)` \| (\w+) \|", table, re.MULTILINE)
    assert [name for name, _ in shown] == [field.name for field in fields(Component)]
    of_bools = {name: default for name, default in shown if default in ("true", "false")}
    assert of_bools == {
        field.name: str(field.default).lower()
        for field in fields(Component)
        if field.default is not MISSING and isinstance(field.default, bool)
    }


@pytest.mark.parametrize(
    ("heading", "declaration"), [("Of a component", ComponentDeclaration), ("Of a processor", ProcessorDeclaration)]
)
def test_the_fields_of_a_declaration_are_all_there(heading: str, declaration: type[Any]) -> None:
    [table] = re.findall(rf"^\| {heading} \| Default .*?\n\n", MODELS, re.DOTALL | re.MULTILINE)
    shown = re.findall(r"^\| `(\w+)` \| (\w*) ?\|", table, re.MULTILINE)
    assert [name for name, _ in shown] == [field.name for field in fields(declaration)]
    assert [name for name, default in shown if not default] == [
        field.name for field in fields(declaration) if field.default is MISSING
    ]


def test_links_lead_somewhere() -> None:
    targets = re.findall(r"\]\(([^)#]+)\)", MODELS)
    assert targets
    assert [target for target in targets if not (ROOT / "docs" / target).exists()] == []
