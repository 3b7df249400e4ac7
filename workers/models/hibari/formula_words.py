"""The words of formulas in TeX, as language models write them between dollar signs or ``\\\\( \\\\)``."""

from __future__ import annotations

import re

# A formula between single dollars has a mark of TeX or is one letter; "$5 and $6" is money.
_FORMULA = re.compile(
    r"\$\$(.{1,2000}?)\$\$|\\\[((?:(?!\\\[).){1,2000}?)\\\]|\\\(((?:(?!\\\().){1,2000}?)\\\)"
    r"|(?<![\w$\\])(\$(?=[^\s$])[^$\n]{1,600}(?<!\s)\$)(?![\w$])",
    re.DOTALL,
)
_OF_TEX = re.compile(r"[\\^_={}]|\$[A-Za-z]\$")
_MOST_NESTED = 12
_INNER = r"\{([^{}]*)\}"
_RULES = [
    (re.compile(r"\\[dt]?frac\s*" + _INNER + r"\s*" + _INNER), r" \1 over \2 "),
    (re.compile(r"\\sqrt\s*\[([^\[\]{}]*)\]\s*" + _INNER), r" the root of degree \1 of \2 "),
    (re.compile(r"\\sqrt\s*" + _INNER), r" the square root of \1 "),
    (re.compile(r"\\(?:text|mathrm|mathbf|mathit|mathbb|mathcal|operatorname|boxed|hat|bar|vec)\s*" + _INNER), r" \1 "),
    (re.compile(r"\\(sum|prod|int)\s*_\s*(?:\{([^{}]*)\}|(\w))\s*\^\s*(?:\{([^{}]*)\}|(\w|\\infty))"), None),
    (re.compile(r"\^\s*(?:\{2\}|2)"), " squared "),
    (re.compile(r"\^\s*(?:\{3\}|3)"), " cubed "),
    (re.compile(r"\^\s*(?:\{([^{}]*)\}|(\\?\w+))"), r" to the power of \1\2 "),
    (re.compile(r"_\s*(?:\{([^{}]*)\}|(\w))"), r" sub \1\2 "),
]
_LARGE = {"sum": "the sum", "prod": "the product", "int": "the integral"}
_COMMANDS = {
    "le": "less than or equal to", "leq": "less than or equal to", "ge": "greater than or equal to",
    "geq": "greater than or equal to", "ne": "is not equal to", "neq": "is not equal to", "approx": "is about",
    "times": "times", "cdot": "times", "div": "divided by", "pm": "plus or minus", "to": "to", "rightarrow": "to",
    "Rightarrow": "implies", "implies": "implies", "iff": "if and only if", "in": "in", "infty": "infinity",
    "sum": "the sum of", "prod": "the product of", "int": "the integral of", "partial": "partial", "forall": "for all",
    "exists": "there is", "lim": "the limit of", "log": "log", "ln": "the natural logarithm of", "sin": "sine",
    "cos": "cosine", "tan": "tangent", "equiv": "is equivalent to", "propto": "is proportional to",
    "ldots": "and so on", "dots": "and so on", "cdots": "and so on", "sqrt": "the square root of", "circ": "degrees",
    "left": "", "right": "", "quad": "", "qquad": "", "displaystyle": "", "begin": "", "end": "",
}  # fmt: skip
_COMMAND = re.compile(r"\\([A-Za-z]+)")
_SIGNS = {"=": "equals", "+": "plus", "-": "minus", "*": "times", "/": "over", "<": "less than", ">": "greater than"}
_SIGN = re.compile(r"[=+*/<>-]")
_MARKS = re.compile(r"\\[,;:! \\{}|]|[{}&~]")


def words_of_formulas(text: str) -> str:
    """Return a text with words in the place of its formulas, one after the other as they are read aloud."""
    return _FORMULA.sub(_spoken, text)


def _spoken(found: re.Match[str]) -> str:
    if found[4] and not _OF_TEX.search(found[4]):
        return found[4]
    return _words(found[1] or found[2] or found[3] or found[4].strip("$"))


def _words(formula: str) -> str:
    for _ in range(_MOST_NESTED):
        before = formula
        for rule, words in _RULES:
            formula = rule.sub(words if words is not None else _with_bounds, formula)
        if formula == before:
            break
    formula = _COMMAND.sub(lambda found: f" {_COMMANDS.get(found[1], found[1])} ", formula)
    formula = _MARKS.sub(" ", formula)
    formula = _SIGN.sub(lambda found: f" {_SIGNS[found[0]]} ", formula)
    return " ".join(formula.replace("\\", " ").split())


def _with_bounds(found: re.Match[str]) -> str:
    kind, low, low_sign, high, high_sign = found.groups()
    return f" {_LARGE[kind]} from {low or low_sign} to {high or high_sign} of "
