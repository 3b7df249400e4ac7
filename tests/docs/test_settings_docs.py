"""docs/settings.md is what the code generates, and says of each process what it reads."""

import ast
import re
import subprocess
from collections.abc import Iterator
from functools import cache

import pytest

from omni_jobs.settings import Settings
from tests.docs.pages import ROOT, page
from tests.docs.settings_table import PAGE, READERS, default_of, meanings, table, unit_of
from tests.docs.settings_table import page as made_page
from tests.unit.test_rooms import MODULES, imported

# The modules that each process begins with. Families and runners come by entry points, so a worker has all of workers.
ROOTS = {
    "api": ("omni_jobs.api.services", "omni_jobs.web.server"),
    "rescuer": ("omni_jobs.maintenance.rescuer",),
    "worker": tuple(module for module in MODULES if re.match(r"workers\b(?!\.offline)", module)),
    "up": ("omni_jobs.stack.embedded",),
    "commands": tuple(module for module in MODULES if re.match(r"omni_jobs\.(cli|doctor|backup)\b", module)),
    "client": ("omni_jobs.client", "omni_jobs.settings"),
}
BY_PROPERTY = {
    "resolved_auth": {"auth", "tenant_header", "api_host"},
    "resolved_database_url": {"database_url", "data_dir"},
    "resolved_stage_configs": {"stage_configs"},
    "resolved_storage_url": {"storage_url", "data_dir"},
}
SETTINGS = ("settings", "_settings", "given", "_given")  # what our code calls them
FOREIGN = re.compile(
    r"(AWS|BOTO|CELERY|CUDA|GLIBC|HF|MALLOC|NVIDIA|OMP|OPENBLAS|OTEL|SSL|TOKENIZERS|VLLM)_\w*|DO_NOT_TRACK|\w+_CA_BUNDLE"
)


@cache
def closure(process: str) -> frozenset[str]:
    """The modules of ours that a process can import."""
    found: set[str] = set()
    new = frozenset(ROOTS[process])
    while new:
        found |= new
        new = frozenset[str]().union(*(imports(module) for module in new)) - found
    return frozenset(found | {"omni_jobs.cli.servers"} if process == "up" else found)  # it starts the others, too


@cache
def imports(module: str) -> frozenset[str]:
    return frozenset(imported(MODULES[module])) & MODULES.keys()


@cache
def tree(module: str) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(ast.parse(MODULES[module].read_text(encoding="utf-8"))))


@cache
def named(module: str) -> frozenset[str]:
    """The settings whose names a module has as attributes or fields, of whatever object."""
    names: set[str] = set()
    for node in tree(module):
        if isinstance(node, ast.Attribute):
            names |= BY_PROPERTY.get(node.attr, {node.attr})
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)  # a part of the settings, such as MediaLimits
        elif isinstance(node, ast.Constant) and str(node.value).startswith("OMNI_JOBS_"):
            names.add(str(node.value).removeprefix("OMNI_JOBS_").lower())
    return frozenset(names & Settings.model_fields.keys())


def read(module: str) -> Iterator[str]:
    """The settings that a module reads from what it calls the settings."""
    for node in tree(module):
        if isinstance(node, ast.Attribute):
            owner = node.value.attr if isinstance(node.value, ast.Attribute) else getattr(node.value, "id", "")
            if owner in SETTINGS:
                yield from BY_PROPERTY.get(node.attr, {node.attr}) & Settings.model_fields.keys()


def test_the_page_is_what_the_code_generates() -> None:
    assert PAGE.read_text(encoding="utf-8") == made_page(), "run scripts/settings-table"
    checked = subprocess.run([ROOT / "scripts/settings-table", "--check"], capture_output=True, text=True)
    assert (checked.returncode, checked.stderr) == (0, "")


def test_every_setting_has_its_row() -> None:
    rows = re.findall(r"^\| `OMNI_JOBS_(\w+)` \|", table(), re.MULTILINE)
    assert [row.lower() for row in rows] == list(Settings.model_fields)


def test_a_setting_without_a_comment_a_reader_or_a_unit_is_told() -> None:
    with pytest.raises(LookupError, match="no comment on lease_s"):
        meanings("class Settings:\n    '''Doc.'''\n\n    # A group.\n\n    lease_s: float = 1.0\n")
    with pytest.raises(LookupError, match="lacks lease"):
        unit_of("lease", Settings.model_fields["lease_s"])


def test_comments_above_and_beside_a_setting_are_its_meaning() -> None:
    source = (
        "class Settings:\n    '''Doc.'''\n\n    # One\n    # group.\n\n    # Above.\n    a: int = 1  # Beside.\n"
        "    b: int = 2  # Of b.\n\n    # Another.\n\n    c: int = (\n        3\n    )  # Of c.\n"
    )
    assert meanings(source) == {
        "a": ("One group.", "Above. Beside."),
        "b": ("One group.", "Of b."),
        "c": ("Another.", "Of c."),
    }


def test_large_defaults_are_said_in_larger_units_too() -> None:
    shown = {name: default_of(name, Settings.model_fields[name]) for name in ("keep_jobs_s", "lease_s", "data_dir")}
    assert shown == {"keep_jobs_s": "`2592000` (30 days)", "lease_s": "`10`", "data_dir": "`~/.local/share/omni-jobs`"}


@pytest.mark.parametrize("process", READERS)
def test_a_process_can_read_what_the_page_says_that_it_reads(process: str) -> None:
    found = frozenset[str]().union(*(named(module) for module in closure(process) - {"omni_jobs.settings"}))
    assert READERS[process] - found == set()
    assert READERS[process] <= Settings.model_fields.keys()


def test_what_code_of_one_process_alone_reads_is_said_of_it() -> None:
    lacking = []
    for module in MODULES:
        owners = [process for process in ROOTS if module in closure(process)]
        if len(owners) == 1:
            lacking += [(module, name) for name in read(module) if name not in READERS[owners[0]]]
    assert lacking == []


def test_variables_of_others_that_the_code_names_are_on_the_page() -> None:
    written = {
        node.value
        for module in MODULES
        for node in tree(module)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and FOREIGN.fullmatch(node.value)
    }
    assert {"CUDA_VISIBLE_DEVICES", "OTEL_SERVICE_NAME", "HF_HUB_OFFLINE", "AWS_"} <= written
    assert sorted(name for name in written if name not in page("settings.md")) == []
