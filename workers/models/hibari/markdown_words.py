"""The words of a text in Markdown, as a person would read them aloud: no marks, no addresses behind links."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Iterator
from functools import cache
from typing import TYPE_CHECKING, Any

from markdown_it import MarkdownIt

if TYPE_CHECKING:
    from markdown_it.token import Token

# Deeper lists and quotes are dropped, with all that follows them. The parser's own limit is 20, which ten lists reach.
_MOST_NESTED = 100
# The time of the parser may grow with the second power of a paragraph whose brackets never close.
_LONGEST_PARAGRAPH = 5_000

_TAG = re.compile(
    r"</?(?:a|b|br|code|del|details|div|em|h[1-6]|hr|i|img|kbd|li|mark|ol|p|pre|s|small|span|strong|sub|summary|sup"
    r"|table|tbody|td|th|thead|tr|u|ul|abbr|article|aside|audio|big|blockquote|body|button|center|cite|dd|dl|dt|figcaption"
    r"|figure|font|footer|form|head|header|html|input|ins|label|main|nav|picture|q|rp|rt|ruby|script|section|source"
    r"|strike|style|time|title|tt|var|video|wbr)(?:\s[^<>]*)?/?>|<!--(?:(?!<!--).)*?-->",
    re.IGNORECASE | re.DOTALL,
)
_TASK = re.compile(r"^([ \t]*(?:[-*+]|\d{1,9}\.)[ \t]+)\[[ xX]\] ", re.MULTILINE)
_FOOTNOTE = re.compile(r"\[\^([\w-]{1,40})\](:[ \t]*)?")


def words_of_markdown(text: str) -> str:
    """Return a text without Markdown's marks and known HTML tags, its blocks on lines of their own.

    A link is its words, an image its description; the cells of a table's row stand between commas. A text without
    marks stays as it is, but for white space around its lines.
    """
    text = _TASK.sub(r"\1", text)
    text = _FOOTNOTE.sub(lambda found: f"Footnote {found[1]}: " if found[2] else "", text)
    references: dict[str, Any] = {}
    return "\n".join(_blocks(_parser().parse(text, references), references))


@cache
def _parser() -> MarkdownIt:
    parser = MarkdownIt("commonmark", {"maxNesting": _MOST_NESTED}).enable(["table", "strikethrough"])
    parser.core.ruler.disable("inline")  # called below, for paragraphs of a bounded length
    return parser


def _blocks(tokens: Iterable[Token], references: dict[str, Any]) -> Iterator[str]:
    marker = ""  # of an ordered list's item, which stands before its first words
    cells: list[str] | None = None
    for token in tokens:
        if token.type == "list_item_open" and token.info:
            marker = f"{token.info}{token.markup} "
        elif token.type == "tr_open":
            cells = []
        elif token.type == "tr_close" and cells is not None:
            yield ", ".join(cell for cell in cells if cell)
            cells = None
        elif token.type == "html_block":
            yield html.unescape(_TAG.sub(" ", token.content))
        elif token.type in ("code_block", "fence"):
            yield token.content
        elif token.type == "inline" and cells is not None:
            cells.append(_inline(token.content, references))
        elif token.type == "inline":
            yield marker + _inline(token.content, references)
            marker = ""


def _inline(content: str, references: dict[str, Any]) -> str:
    if len(content) > _LONGEST_PARAGRAPH:
        return content
    parser = _parser()
    children: list[Token] = []
    parser.inline.parse(content, parser, references, children)
    return "".join(map(_words, children))


def _words(token: Token) -> str:
    if token.type in ("softbreak", "hardbreak"):
        return "\n"
    if token.type == "image":
        return "".join(map(_words, token.children or ()))
    if token.type == "html_inline":
        return _TAG.sub("\n" if token.content[:3].lower() == "<br" else "", token.content)
    return token.content
