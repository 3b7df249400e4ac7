"""``printable``: what strangers wrote steers no terminal that shows it.

A line may hold the words of a remote server, a plug-in's or an artifact's name. Whoever looks at a log does so on a
terminal, where escape sequences among these could do more than be seen.
"""

import re

_NOT_PLAIN = re.compile(r"[^\n\t -~]")


def printable(text: str) -> str:
    """Return the text with each unprintable character as �; newlines and tabs stay."""
    return _NOT_PLAIN.sub(lambda found: found[0] if found[0].isprintable() else "�", text)
