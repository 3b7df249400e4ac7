"""``drawn``: where the stages of a pipeline stand in its drawing, and the lines between them. It reads nothing."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

BOX_WIDTH: Final = 208
BOX_HEIGHT: Final = 90
RATED_HEIGHT: Final = 107  # of boxes that have a line for the rate as well
_GAP: Final = 44  # between two columns
_LINE_GAP: Final = 12  # between two boxes of a column
_ROWS: Final = 2  # of stages without lines, at least, before another column begins
_MARGIN: Final = 3  # for the outline of a box that has the focus


@dataclass(frozen=True, slots=True)
class Box:
    """The box of a stage: its upper left corner, in pixels."""

    stage: str
    x: int
    y: int


@dataclass(frozen=True, slots=True)
class Drawing:
    """The drawing of a pipeline. ``lines`` are paths of SVG."""

    width: int
    height: int
    boxes: Sequence[Box]
    lines: Sequence[str]


def drawn(inputs: Mapping[str, Sequence[str]], box_height: int = BOX_HEIGHT) -> Drawing:
    """Return the drawing of stages, given with their ``inputs``, the stages that feed them; none feeds itself.

    A stage stands one column behind the last of those that feed it, and stages without any line behind all others.
    An input that is no stage has no line.
    """
    of_column = _columns(inputs)
    most = max(map(len, of_column.values()), default=0)
    height = most * box_height + max(0, most - 1) * _LINE_GAP
    boxes: dict[str, Box] = {}
    for column, stages in of_column.items():
        its_height = len(stages) * box_height + (len(stages) - 1) * _LINE_GAP
        top = _MARGIN + (height - its_height) // 2
        for row, stage in enumerate(stages):
            x = _MARGIN + column * (BOX_WIDTH + _GAP)
            boxes[stage] = Box(stage, x, top + row * (box_height + _LINE_GAP))
    lines = [
        _line(boxes[each], boxes[stage], box_height)
        for stage, feeds in inputs.items()
        for each in feeds
        if each in boxes
    ]
    width = max((box.x for box in boxes.values()), default=0) + BOX_WIDTH + _MARGIN
    return Drawing(width, height + 2 * _MARGIN, list(boxes.values()), lines)


def _columns(inputs: Mapping[str, Sequence[str]]) -> dict[int, list[str]]:
    """Return the stages of each column, from the left."""
    known = {stage: [each for each in feeds if each in inputs] for stage, feeds in inputs.items()}
    feeding = {each for feeds in known.values() for each in feeds}
    alone = [stage for stage, feeds in known.items() if not feeds and stage not in feeding]
    columns: dict[str, int] = {}
    while len(columns) < len(inputs) - len(alone):
        for stage, feeds in known.items():
            if stage not in alone and all(each in columns for each in feeds):
                columns[stage] = 1 + max((columns[each] for each in feeds), default=-1)
    of_column: dict[int, list[str]] = {}
    for stage, column in columns.items():
        of_column.setdefault(column, []).append(stage)
    most, first = max([_ROWS, *map(len, of_column.values())]), len(of_column)
    for number, stage in enumerate(alone):
        of_column.setdefault(first + number // most, []).append(stage)
    return of_column


def _line(begin: Box, end: Box, box_height: int) -> str:
    x, y = begin.x + BOX_WIDTH, begin.y + box_height // 2
    to_x, to_y = end.x, end.y + box_height // 2
    bend = _GAP // 2
    return f"M{x} {y}C{x + bend} {y} {to_x - bend} {to_y} {to_x} {to_y}"
