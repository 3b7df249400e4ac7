"""docs/architecture.md says which room imports which: it must be so, room by room, and each name in it must exist."""

import ast
import builtins
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
PACKAGES = ("omni_jobs", "workers")
MOST_FILES = {"omni_jobs": 14, "workers": 3}
MOST_ROOMS_OF_JOBS = 8
LONGEST_FUNCTION = 60
LONGEST_FILE = 600
TABLES_OF_ERRORS = ("omni_jobs/errors.py",)


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))}


def room_of(module: str) -> str:
    return ".".join(module.split(".")[:2])


def imported(path: Path) -> Iterator[str]:
    """Yield the modules of ours that a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] in PACKAGES:
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                yield whole if whole in MODULES else node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] in PACKAGES)


def ground_floor() -> set[str]:
    (line,) = re.findall(r"^Ground floor: (.*)\.$", TEXT, re.MULTILINE)
    return set(re.findall(r"`(.*?)`", line))


def plan() -> dict[str, set[str]]:
    """Return the rooms that each room may import."""
    rows = re.findall(r"^\| `([a-z_.]+)` \| .*? \| (.*?) ?\|$", TEXT, re.MULTILINE)
    rooms = {}
    for room, uses in rows:
        names = re.findall(r"`(.*?)`", uses)
        rooms[room] = {name if name.startswith("workers.") else f"omni_jobs.{name}" for name in names}
    return rooms


ROOMS = sorted({room_of(module) for module in MODULES if "." in module} - ground_floor())


def test_the_plan_names_every_room() -> None:
    assert sorted(plan()) == ROOMS
    assert {name for names in plan().values() for name in names} <= set(ROOMS)


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_the_rooms_of_the_plan_alone(room: str) -> None:
    uses: dict[str, str] = {}
    for module, path in MODULES.items():
        if room_of(module) == room:
            uses |= {room_of(name): f"{module} imports {name}" for name in imported(path) if "." in name}
    others = {name: why for name, why in uses.items() if name != room and name not in ground_floor()}
    assert [why for name, why in others.items() if name not in plan()[room]] == []
    assert plan()[room] <= set(others), "the plan draws an arrow that is not there"


def test_the_ground_floor_uses_itself_alone() -> None:
    for room in ground_floor():
        assert {room_of(name) for name in imported(MODULES[room])} <= ground_floor()


def test_no_rooms_need_each_other() -> None:
    left = {room: set(uses) for room, uses in plan().items()}
    while ready := [room for room, uses in left.items() if not uses]:
        for room in ready:
            del left[room]
        for uses in left.values():
            uses.difference_update(ready)
    assert left == {}


def test_seen_from_its_door_jobs_has_few_rooms_none_of_which_need_each_other() -> None:
    def inner_room(module: str) -> str:
        return module.split(".")[2]

    inside = {module: path for module, path in MODULES.items() if module.startswith("omni_jobs.jobs.")}
    of_room = {inner_room(module): set[str]() for module in inside}
    assert len(of_room) <= MOST_ROOMS_OF_JOBS
    for module, path in inside.items():
        of_room[inner_room(module)] |= {inner_room(name) for name in imported(path) if name in inside}
    left = {room: uses - {room} for room, uses in of_room.items() if room != "jobs"}
    while ready := {room for room, uses in left.items() if not uses}:
        left = {room: uses - ready for room, uses in left.items() if room not in ready}
    assert left == {}


@pytest.mark.parametrize("package", PACKAGES)
def test_the_hall_is_small(package: str) -> None:
    assert len(list((ROOT / package).glob("*.py"))) <= MOST_FILES[package]


def definition(path: Path, names: list[str]) -> ast.AST | None:
    """Return where a file defines ``names``: a class or function, then one within it."""
    node: ast.AST = ast.parse(path.read_text(encoding="utf-8"))
    for name in names:
        kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        inner = [each for each in ast.iter_child_nodes(node) if isinstance(each, kinds) and each.name == name]
        if not inner:
            return None
        node = inner[0]
    return node


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`((?:omni_jobs|workers)\.[A-Za-z_.]+)`", TEXT))))
def test_each_name_of_the_walk_exists(name: str) -> None:
    parts = name.split(".")
    module = next(".".join(parts[:n]) for n in range(len(parts), 0, -1) if ".".join(parts[:n]) in MODULES)
    rest = name.removeprefix(module).lstrip(".")
    assert not rest or definition(MODULES[module], rest.split(".")) is not None


def test_the_walk_has_twelve_hops() -> None:
    walk = TEXT.partition("## One job's walk")[2].partition("\n## ")[0]
    assert re.findall(r"^(\d+)\. `", walk, re.MULTILINE) == [str(n) for n in range(1, 13)]


@pytest.mark.parametrize("path", MODULES.values(), ids=MODULES)
def test_files_and_functions_are_short(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    if str(path.relative_to(ROOT)) not in TABLES_OF_ERRORS:
        assert text.count("\n") <= LONGEST_FILE
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert (node.end_lineno or 0) - node.lineno < LONGEST_FUNCTION, node.name


def kinds_of(path: Path) -> set[str]:
    """Return the names of the classes and type aliases that a module defines at its top."""
    body = list(ast.parse(path.read_text(encoding="utf-8")).body)
    names: set[str] = set()
    while body:
        node = body.pop()
        if isinstance(node, ast.If):
            body += node.body + node.orelse
        elif isinstance(node, ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {each.id for each in targets if isinstance(each, ast.Name) and names_a_kind(each.id)}
    return names


def names_a_kind(name: str) -> bool:
    word = name.lstrip("_")
    return word[:1].isupper() and word != word.upper()


KINDS = {module: kinds_of(path) for module, path in MODULES.items()}


def test_each_public_name_of_a_class_or_type_is_defined_once() -> None:
    modules = Counter(name for names in KINDS.values() for name in names if not name.startswith("_"))
    assert [name for name, times in modules.items() if times > 1] == []


@pytest.mark.parametrize("room", sorted({room_of(module) for module in MODULES}))
def test_a_room_has_no_two_classes_or_types_of_one_name(room: str) -> None:
    """A private name is no other's, public or private, in the same room."""
    modules = Counter(name.lstrip("_") for module, names in KINDS.items() if room_of(module) == room for name in names)
    assert [name for name, times in modules.items() if times > 1] == []


def names_of_python() -> set[str]:
    """Return the built-in names, and those that a module of ours imports from Python's library."""
    names = set(dir(builtins))
    for path in MODULES.values():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in sys.stdlib_module_names:
                names |= {alias.asname or alias.name for alias in node.names}
    return names


def test_no_class_or_type_has_a_name_of_pythons() -> None:
    assert set().union(*KINDS.values()) & names_of_python() == set()


def test_each_room_has_its_tests_where_its_name_says() -> None:
    """A room without a directory of tests is one that another room's tests cover whole."""
    names = {room.split(".")[1] for room in ROOMS}
    for kind in ("unit", "integration"):
        directories = [path for path in (ROOT / "tests" / kind).iterdir() if path.is_dir()]
        found = {path.name for path in directories if path.name != "__pycache__"}
        assert found <= names
