"""The texts of the requests in hand, which no log line quotes, also where an error message does.

A worker has the requests of its stage runs in flight in hand, an API server that which it admits. What is hidden is a
text as a whole, and a piece of it of some length. Of a very long text the beginning and the end count.
"""

import json
import re
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from typing import Any, Final

from pydantic import BaseModel

_SHORTEST = 8  # characters of a whole text: "Hello" may stand in a line
_PIECE = 12  # characters of a piece, of which a text has one after the other: a quote of 23 or more has a whole one
_MOST_CHARS = 16_384  # of a text that count, from each end
_PUBLIC: Final = frozenset({"model", "modalities", "role", "type", "format"})
_GONE = "[text]"
_WHOLE_PIECES: Final = re.compile(rf".{{{_PIECE}}}", re.DOTALL)
_BETWEEN: Final = re.compile(
    r"\[text\](?:.{0,24}?\[text\])+", re.DOTALL
)  # words between two escapes, too few to be found

_in_hand: dict[int, Mapping[str, Any]] = {}  # by stage run, for all threads
admitted: ContextVar[tuple[Any, ...]] = ContextVar("admitted", default=())
"""The requests, JSON or models of it, that this code admits; a thread that a route runs code on has them, too."""


def hide(stage_run_id: int, request: Mapping[str, Any]) -> None:
    """Hide the texts of this stage run's request from now on, until ``show``."""
    _in_hand[stage_run_id] = request


def show(stage_run_id: int) -> None:
    """Forget the texts of a stage run that has ended."""
    _in_hand.pop(stage_run_id, None)


def without_texts(line: str) -> str:
    """Return the line without the texts in hand."""
    requests = [*_in_hand.values(), *admitted.get()]
    if not requests or len(line) < _SHORTEST:
        return line
    without, pieces = line, _pieces(line)
    for request in requests:
        for text in _texts(request):
            shown = _as_shown(text)
            for each in shown:
                if len(each) <= len(without) and each in without:
                    without = without.replace(each, _GONE)
                    pieces = _pieces(without)
            for each in shown:  # the texts are taken apart in C, because many long ones may be in hand
                if not pieces.isdisjoint(_WHOLE_PIECES.findall(each)):
                    without = _without_pieces(without, each)
                    pieces = _pieces(without)
    return line if without is line else _BETWEEN.sub(_GONE, without)


def _as_shown(text: str) -> list[str]:
    """Return the text as lines may show it, the longest first: that one has the others' escapes in it."""
    shown = {text, json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1], repr(text)[1:-1]}
    return sorted(shown, key=len, reverse=True)


def _texts(value: object) -> Iterator[str]:
    """Yield the texts of a request that may be its user's own."""
    match value:
        case str():
            text = value if len(value) <= 2 * _MOST_CHARS else f"{value[:_MOST_CHARS]}\n{value[-_MOST_CHARS:]}"
            if len(text.strip()) >= _SHORTEST:
                yield text.strip()
        case BaseModel():
            yield from _texts(value.__dict__)
        case Mapping():
            for name, part in value.items():
                if name not in _PUBLIC:
                    yield from _texts(part)
        case list() | tuple():
            for part in value:
                yield from _texts(part)


def _pieces(line: str) -> set[str]:
    """Return the pieces of a line, from each of its characters on."""
    return {line[at : at + _PIECE] for at in range(len(line) - _PIECE + 1)}


def _without_pieces(line: str, text: str) -> str:
    """Return the line without what it quotes of the text: a piece that the text has, and what is the same around it."""
    places = {piece[0]: piece.start() for piece in _WHOLE_PIECES.finditer(text)}
    shown: list[str] = []
    at = behind = 0  # behind what is quoted already
    while at + _PIECE <= len(line):
        found = places.get(line[at : at + _PIECE])
        if found is None:
            at += 1
            continue
        begin, end = at, at + _PIECE
        end_found = found + _PIECE
        while begin > behind and found > 0 and line[begin - 1] == text[found - 1]:
            begin, found = begin - 1, found - 1
        while end < len(line) and end_found < len(text) and line[end] == text[end_found]:
            end, end_found = end + 1, end_found + 1
        shown += [line[behind:begin], _GONE]
        at = behind = end
    return "".join([*shown, line[behind:]])
