"""The rooms of the execution plane import downwards only."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

WORKERS = Path(__file__).parents[2] / "workers"
FLOORS = (
    {"app"},
    {"consumer", "offline"},
    {"execution"},
    {"runners"},
    {"vllm_hooks"},
    {"models"},
    {"stages"},
    {"parent_death"},
)
FLOOR_OF = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}


@pytest.mark.parametrize("room", FLOOR_OF)
def test_a_room_imports_rooms_below_it_alone(room: str) -> None:
    """Imports inside functions and for type checking count as well."""
    files = sorted((WORKERS / room).rglob("*.py")) or [WORKERS / f"{room}.py"]
    for file in files:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("workers."):
                imported = node.module.split(".")[1]
                below = FLOOR_OF[imported] > FLOOR_OF[room]
                assert imported == room or below, f"{file.relative_to(WORKERS)} imports {node.module}"
