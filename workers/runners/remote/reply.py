"""``Reply``: what a model says, as it grows: its text, and what is told beside it."""

from collections.abc import Collection, Mapping
from typing import Any

from omni_jobs.errors import ModelError
from workers.runners.growing_text import GrowingText
from workers.runners.remote.document import MOST_TEXT, Document, PathStep
from workers.runners.remote.failures import Setback, bad_answer, broken_off
from workers.runners.remote.tool_calls import ToolCalls
from workers.stages.types import OmniModelRunnerOutput

_MOST_NAMES = 20  # of tools
_MOST_NAME = 64  # characters of one
_MOST_COUNT = 1 << 53
_THOUGHTS = ("thinking", "reasoning", "summary")  # what the kinds of such parts begin with
_ENCRYPTED = "redacted_thinking"
_LENGTH = ("length", "max_tokens", "max_output_tokens", "max_completion_tokens", "model_length")
_WITHHELD = ("content_filter", "safety", "prohibited_content", "blocklist", "spii", "recitation")
_GIVEN_UP = ("abort", "error", "cancelled", "insufficient_system_resource")


class Reply:
    """Collects a reply's pieces, of at most 4 Mi characters.

    finish_reason  the server's, in small letters; None: it has not said one
    usage          {"prompt_tokens", "completion_tokens"}; None: the server did not count them
    calls          the calls of tools that the model was offered; None: it was offered none
    """

    def __init__(self, text: GrowingText, calls: ToolCalls | None = None) -> None:
        """Take the text that grows, and what collects calls of tools."""
        self.calls = calls
        self.finish_reason: str | None = None
        self.usage: Mapping[str, int] | None = None
        self._text = text
        self._beside: dict[str, list[str]] = {"refusal": [], "reasoning": []}
        self._part: object = None  # of the reasoning, the last that a piece was added to
        self._hides = False
        self._tools: dict[str, None] = {}  # names, in their order
        self._characters = 0

    def say(self, piece: str | None, tokens: int | None = None) -> None:
        """Add a piece of the text, ``tokens`` of which there are so far. Raises ModelError for too much."""
        if piece:
            self._count(piece)
            self._text.add(piece, tokens)

    def refuse(self, piece: str | None) -> None:
        """Add a piece of the model's words of refusal. Raises ModelError for too much."""
        self._add("refusal", piece)

    def reason(self, piece: str | None, part: object = None) -> None:
        """Add a piece of the model's reasoning; an empty line parts one ``part`` from the next.

        Raises ModelError for too much.
        """
        if piece and part != self._part:
            if self._beside["reasoning"]:
                self._add("reasoning", "\n\n")
            self._part = part
        self._add("reasoning", piece)

    def hide(self) -> None:
        """Note that there is reasoning which only the server can read."""
        self._hides = True

    def call(self, tool: str | None) -> None:
        """Note that the model calls a tool, whose name may be unknown."""
        if len(self._tools) < _MOST_NAMES:
            self._tools[(tool or "")[:_MOST_NAME]] = None

    def output(self, *, ended: bool) -> OmniModelRunnerOutput:
        """Return the output of a reply that came whole; ``ended``: the server said its end in another way.

        Raises Setback for a reply that has no end or was given up, ModelError for one that is withheld, and for one
        that calls tools and says nothing.
        """
        reason = self.finish_reason
        if reason is None and not ended:
            raise broken_off()
        if reason in _GIVEN_UP:
            raise Setback(f"the server gave the request up: {reason}", counts=True)
        if reason in _WITHHELD:
            raise ModelError("the server's content filter withholds the answer")
        refusal, reasoning = ("".join(self._beside[name]) for name in ("refusal", "reasoning"))
        text = str(self._text)
        warnings = []
        if refusal:
            warnings.append(_warning("refused", "the model refuses to answer"))
            text = f"{text}\n{refusal}" if text.strip() else refusal
        if self._tools and self.calls is None:
            names = ", ".join(name for name in self._tools if name)
            called = "the model calls tools, which no stage runs" + (f": {names}" if names else "")
            if not text.strip():
                raise ModelError(f"{called}; it says nothing beside that")
            warnings.append(_warning("tool_calls", called))
        if self._hides and not reasoning:
            warnings.append(_warning("reasoning_hidden", "the model's reasoning is encrypted"))
        result: Mapping[str, Any] = {"reasoning": reasoning} if reasoning else {}
        return OmniModelRunnerOutput(
            text=text,
            finish_reason="length" if reason in _LENGTH else "stop",
            usage=self.usage,
            warnings=warnings,
            result=result,
            tool_calls=() if self.calls is None else self.calls.collected(),
        )

    def _add(self, name: str, piece: str | None) -> None:
        if piece:
            self._count(piece)
            self._beside[name].append(piece)

    def _count(self, piece: str) -> None:
        self._characters += len(piece)
        if self._characters > MOST_TEXT:
            raise bad_answer(f"it has more text than {MOST_TEXT} characters")


def _warning(code: str, message: str) -> Mapping[str, str]:
    return {"code": code, "message": message}


def add_content(
    reply: Reply, document: Document, *path: PathStep, tokens: int | None = None, without: Collection[str] = ()
) -> None:
    """Add a message's content to a reply: a string, or a list of parts, of which those of other kinds are passed over.

    ``without``: of "text" and "refusal", what the reply has already. Raises ModelError for content of another type.
    """
    content = document.at(*path)
    if not isinstance(content, list):
        if "text" not in without:
            reply.say(document.text(*path), tokens)
        return
    for place, part in enumerate(content):
        if isinstance(part, str):
            if "text" not in without:
                reply.say(document.text(*path, place))
            continue
        kind = document.word(*path, place, "type") or ""
        if kind == _ENCRYPTED:
            reply.hide()
        add = reply.reason if kind.startswith(_THOUGHTS) else reply.say
        for name, take in (("text", add), ("refusal", reply.refuse), ("thinking", reply.reason)):
            if name not in without and isinstance(document.peek(*path, place, name), str):
                take(document.text(*path, place, name))
        thoughts = document.peek(*path, place, "thinking")
        for within in range(len(thoughts)) if isinstance(thoughts, list) else ():
            if isinstance(document.peek(*path, place, "thinking", within, "text"), str):
                reply.reason(document.text(*path, place, "thinking", within, "text"))


def usage_of(document: Document, *path: PathStep) -> Mapping[str, int] | None:
    """Return {"prompt_tokens", "completion_tokens"}; None if the server counts neither, or one of them unusably."""
    counts: dict[str, int] = {}
    for ours, others in (("prompt_tokens", "input_tokens"), ("completion_tokens", "output_tokens")):
        count = document.peek(*path, ours)
        if count is None:
            count = document.peek(*path, others)
        if count is None:
            continue
        if type(count) is not int or not 0 <= count <= _MOST_COUNT:
            return None
        counts[ours] = count
    return {"prompt_tokens": 0, "completion_tokens": 0, **counts} if counts else None
