"""The variables of Compose's files, as Compose replaces them: ``${A:-word}``, ``${A:+word}``, ``${A:?word}``."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

_OPENING = re.compile(r"\$(?:\$|\{(\w+)(?:(:?[-+?]))?)")


class Missing(Exception):
    """A variable that has to have a value has none: its name, and what Compose says."""


class Variable(NamedTuple):
    """A use of a variable. ``word`` is what stands behind the operator, with the variables in it as they are."""

    name: str
    operator: str
    word: str


def variables_of(text: str) -> Iterator[Variable]:
    """Yield each use of a variable in a text, also those within the words of others."""
    for _, _, variable in _parts(text):
        if variable is not None:
            yield variable
            yield from variables_of(variable.word)


def interpolated(text: str, values: Mapping[str, str]) -> str:
    """Return the text with the values of its variables. Raises Missing."""
    made, end = "", 0
    for start, after, variable in _parts(text):
        made += text[end:start] + ("$" if variable is None else _value(variable, values))
        end = after
    return made + text[end:]


def _parts(text: str) -> Iterator[tuple[int, int, Variable | None]]:
    """Yield begin, end and variable of each outermost use; no variable: ``$$``."""
    end = 0
    while (found := _OPENING.search(text, end)) is not None:
        if found[1] is None:
            end = found.end()
            yield found.start(), end, None
            continue
        depth, end = 1, found.end()
        while depth:
            depth += {"{": text[end - 1] == "$", "}": -1}.get(text[end], 0)
            end += 1
        yield found.start(), end, Variable(found[1], found[2] or "", text[found.end() : end - 1])


def _value(variable: Variable, values: Mapping[str, str]) -> str:
    given = values.get(variable.name, "")
    there = bool(given) or (variable.name in values and not variable.operator.startswith(":"))
    match variable.operator[-1:]:
        case "-":
            return given if there else interpolated(variable.word, values)
        case "+":
            return interpolated(variable.word, values) if there else ""
        case "?" if not there:
            raise Missing(variable.name, interpolated(variable.word, values))
    return given


def interpolated_tree(node: Any, values: Mapping[str, str]) -> Any:
    """Replace the variables in each text of a parsed file, as Compose does: so an empty one gives a text, no null."""
    if isinstance(node, dict):
        return {key: interpolated_tree(part, values) for key, part in node.items()}
    if isinstance(node, list):
        return [interpolated_tree(part, values) for part in node]
    return interpolated(node, values) if isinstance(node, str) else node
