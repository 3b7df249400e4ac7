"""The commands of the docs' shell blocks, as a shell splits them."""

import re
import shlex
from collections.abc import Iterator
from typing import NamedTuple

from tests.docs.pages import PAGES

_BETWEEN = re.compile(r"[;&|()]+")
_REDIRECTION = re.compile(r"[<>]+")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)


class Command(NamedTuple):
    """One command of a page. ``variables``: those that stand before it on its line."""

    page: str
    words: tuple[str, ...]
    variables: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        return f"{self.page}: {' '.join(self.words)[:80]}"


def commands() -> list[Command]:
    """Return every command of every shell block of every page, each once a page."""
    found = (
        Command(page, tuple(words), tuple(variables))
        for page, text in PAGES.items()
        for block in shell_blocks(text)
        for line in _lines(block)
        for variables, words in _parts(line)
    )
    return list(dict.fromkeys(found))


def shell_blocks(text: str) -> list[str]:
    """Return the blocks of a page that a shell is to read, whatever their language is called."""
    found: list[str] = re.findall(r"^ *```(?:bash|sh|shell|console|zsh)\n(.*?)^ *```", text, re.DOTALL | re.MULTILINE)
    return found


def split(line: str) -> list[tuple[list[tuple[str, str]], list[str]]]:
    """Return the commands of a text, each with the variables before it."""
    return [part for each in _lines(line) for part in _parts(each)]


def _lines(block: str) -> Iterator[str]:
    """Yield the lines of a block; one whose quotation is open, or which ends in a backslash, goes on."""
    line = ""
    for part in block.splitlines():
        line += part
        if line.endswith("\\"):
            line = line[:-1]
            continue
        try:
            shlex.split(line, comments=True)
        except ValueError:
            line += "\n"
        else:
            yield line
            line = ""
    if line:
        raise ValueError(f"a quotation is never closed: {line!r:.200}")


def _parts(line: str) -> Iterator[tuple[list[tuple[str, str]], list[str]]]:
    lexer = shlex.shlex(line, posix=True, punctuation_chars="();<>|&")
    lexer.whitespace_split = True
    variables: list[tuple[str, str]] = []
    words: list[str] = []
    tokens = iter([*lexer, ";"])
    for token in tokens:
        if _BETWEEN.fullmatch(token):
            if words:
                yield variables, words
            variables, words = [], []
        elif _REDIRECTION.fullmatch(token):
            next(tokens)
        elif not words and (found := _ASSIGNMENT.fullmatch(token)):
            variables.append((found[1], found[2]))
        else:
            words.append(token)
