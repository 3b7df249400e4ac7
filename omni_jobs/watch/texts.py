"""``SeenTexts``: the texts of watched attempts, as far as they are written. Each is read once for all who watch."""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence

from omni_jobs.jobs import Glance, TextPiece, WantedText


class SeenText:
    """The text that an attempt has written so far. One thread may add to it while others read it."""

    def __init__(self, attempt: int) -> None:
        self.attempt = attempt
        self.chars = 0
        self.progress_json: str | None = None  # with which it was read last
        self._starts: list[int] = []
        self._parts: list[str] = []

    def add(self, start: int, text: str) -> None:
        """Add what is new in the piece that begins with the character ``start``, unless there is a gap before it."""
        new = text[self.chars - start :] if start <= self.chars else ""
        if new:
            self._parts.append(new)
            self._starts.append(self.chars)
            self.chars += len(new)

    def since(self, offset: int) -> str:
        """Return the text from the character ``offset`` on."""
        if offset >= self.chars:
            return ""
        first = bisect_right(self._starts, offset) - 1
        text = "".join(self._parts[first:])
        return text[offset - self._starts[first] :]


class SeenTexts:
    """Reads the texts of watched attempts as they grow, and forgets those that nobody watches any more."""

    def __init__(self, text_pieces: Callable[[Sequence[WantedText]], Iterable[TextPiece]]) -> None:
        """``text_pieces`` is ``Jobs.text_pieces``."""
        self._text_pieces = text_pieces
        self._texts: dict[int, SeenText] = {}  # of the stage runs that are watched

    def of(self, stage_run_id: int) -> SeenText | None:
        """Return the text of a stage run's last attempt; None if it has written none, or nobody watches it."""
        return self._texts.get(stage_run_id)

    def look(self, glances: Mapping[str, Glance]) -> None:
        """Read what the stage runs of these glances have written since the last look, and forget those of others."""
        texts: dict[int, SeenText] = {}
        wanted = []
        looked_at: list[tuple[SeenText, str]] = []
        for job_id, glance in glances.items():
            for run in glance.runs:
                text = self._texts.get(run.id)
                if text is None or text.attempt != run.attempt:
                    text = SeenText(run.attempt)
                texts[run.id] = text
                if run.progress_json is not None and run.progress_json != text.progress_json:
                    if (run.chars or 0) > text.chars:
                        wanted.append(WantedText(job_id, run.id, run.attempt, text.chars))
                    looked_at.append((text, run.progress_json))
        for piece in self._text_pieces(wanted) if wanted else ():
            texts[piece.stage_run_id].add(piece.start, piece.text)
        for text, progress_json in looked_at:  # not before, because a look that fails is made again
            text.progress_json = progress_json
        self._texts = texts
