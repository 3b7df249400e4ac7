"""CONTRIBUTING.md names scripts, options, tests and folders that there are."""

import re
import shlex

import pytest

from tests.docs.pages import PAGES, ROOT, blocks

TEXT = PAGES["CONTRIBUTING.md"]
COMMANDS = [shlex.split(line) for block in blocks(TEXT, "bash") for line in block.splitlines()]


def test_the_commands_are_found() -> None:
    assert {words[0] for words in COMMANDS} >= {"scripts/setup", "scripts/check", "scripts/test", "scripts/audit"}


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_each_command_is_a_script_that_knows_its_options(words: list[str]) -> None:
    script = ROOT / words[0]
    assert script.stat().st_mode & 0o100
    assert script.read_text(encoding="utf-8").startswith("#!/usr/bin/env bash\n#")
    twin = script.with_name(f"{script.name}.py")
    code = script.read_text(encoding="utf-8") + (twin.read_text(encoding="utf-8") if twin.exists() else "")
    for word in words[1:]:
        if word.startswith("tests/"):
            assert (ROOT / word).exists()
        elif word.startswith("--"):
            assert word in code


def test_the_folders_are_those_of_the_repository() -> None:
    cells = re.findall(r"^\| ((?:`\w+/`(?:, )?)+) \|", TEXT, re.MULTILINE)
    shown = [name for cell in cells for name in re.findall(r"`(\w+)/`", cell)]
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    assert packages <= set(shown)
    assert [name for name in shown if not (ROOT / name).is_dir()] == []


def test_the_paths_it_names_are_there() -> None:
    named = set(re.findall(r"`((?:scripts|tests|locks|omni_jobs|migrations|\.ci)/[\w/.-]*)`", TEXT))
    assert len(named) >= 10
    assert sorted(name for name in named if not (ROOT / name).exists()) == []
