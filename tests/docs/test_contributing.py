"""CONTRIBUTING.md names scripts, options, tests and folders that there are."""

import re
import shlex

from tests.docs.pages import PAGES, ROOT, blocks

TEXT = PAGES["CONTRIBUTING.md"]
COMMANDS = [shlex.split(line) for block in blocks(TEXT, "bash") for line in block.splitlines()]


def test_the_commands_are_found() -> None:
    assert {words[0] for words in COMMANDS} >= {"scripts/setup", "scripts/check", "scripts/test", "scripts/audit"}


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
