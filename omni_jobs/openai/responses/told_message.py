"""``ToldMessage``: what a client was told of a response's message, which attempts write one after the other."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from omni_jobs.openai.responses.numbers import MOST_CHARS, StreamPlace


class Closed(NamedTuple):
    """The message of the attempt ``item`` is not written to its end."""

    item: int


class Delta(NamedTuple):
    """The next text of the message of the attempt ``item``, which has so many characters with it."""

    item: int
    chars: int
    text: str


class ToldMessage:
    """The message that is open, which a client has in part, and the attempt that is followed.

    item     the attempt whose message is open; 0: none is
    chars    the characters of that message which the client has
    attempt  the attempt that is followed; 0: none is yet
    seen     the characters of its text that were looked at
    """

    def __init__(self, place: StreamPlace) -> None:
        """``place``: where the client is."""
        self.item = place.attempt if place.chars is not None else 0
        self.chars = place.chars or 0
        self.attempt = 0
        self.seen = 0
        self._known: str | None = ""  # what the client has, of earlier attempts; None: nobody knows that any longer

    def follow(self, attempt: int) -> range | None:
        """Go over to an attempt, which writes its text from the beginning.

        Return the attempts that may have written what the client has, this one among them: call ``compare_with`` with
        what they are known to have written. None: no earlier attempt has.
        """
        self.attempt, self.seen, self._known = attempt, 0, ""
        if self.item > attempt:  # there is no such message: the client made its number up
            self.item = self.chars = 0
        if self.item == attempt:
            self.seen = self.chars
        return range(self.item, attempt + 1) if self.item not in (0, attempt) else None

    def compare_with(self, known: str | None) -> None:
        """Hold the attempt's text against what the client was told by earlier ones; None: nobody knows that."""
        self._known = known

    def tell(self, new: str, *, is_whole: bool) -> Iterator[Closed | Delta]:
        """Yield what the client has to be told of the attempt's next text, which begins with the character ``seen``.

        ``is_whole``: nothing comes after it.
        """
        seen = self.seen
        if self._differs(new, is_whole=is_whole):
            yield Closed(self.item)
            new = (self._known or "")[:seen] + new
            seen = self.item = self.chars = 0
        rest = new[max(0, self.chars - seen) :][: max(0, MOST_CHARS - self.chars)]
        self.seen = seen + len(new)
        if rest:
            self.item = self.item or self.attempt
            self.chars += len(rest)
            yield Delta(self.item, self.chars, rest)

    def _differs(self, new: str, *, is_whole: bool) -> bool:
        """Return whether the attempt writes something else than the client was told by earlier ones.

        Also where nobody knows any longer what that was.
        """
        if self.item in (0, self.attempt) or self.seen >= self.chars or not (new or is_whole):
            return False
        if self._known is None or (is_whole and self.seen + len(new) < self.chars):
            return True
        return not new.startswith(self._known[self.seen : self.seen + len(new)])


def known_text(texts: Mapping[int, str], chars: int) -> str | None:
    """Return the first ``chars`` characters of a message that the first of these attempts has begun, by their texts.

    Later ones may have gone on with it. None where nobody knows any longer what it said: the pieces of texts go some
    time after their last reader, all of a job together, so that those of the first attempt are gone if any is. And
    attempts that differ within these characters leave open which one the client had.
    """
    begins = [text[:chars] for text in texts.values()]
    longest = max(begins, key=len)
    if len(longest) < chars or (chars and not begins[0]):
        return None
    return longest if all(longest.startswith(begin) for begin in begins) else None
