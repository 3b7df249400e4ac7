"""What a captured request may read of vLLM's cache, against a model of that cache."""

from collections import OrderedDict
from types import SimpleNamespace

from hypothesis import given, settings
from hypothesis import strategies as st

from workers.runners.ar.kept_prefixes import CapturedPrompt, KeptPrefixes, prompt_of

BLOCK = 2
Tokens = tuple[int, ...]
# Prompts that begin alike, and answers that go on as other prompts do.
TOKENS = st.builds(lambda zeros, ones: (0,) * zeros + (1,) * ones, st.integers(1, 7), st.integers(0, 2))


class Cache:
    """vLLM's: by salt and tokens, the least recently used block goes first."""

    def __init__(self, room: int) -> None:
        self._room = room
        self._blocks: OrderedDict[tuple[str, Tokens], None] = OrderedDict()

    def read(self, salt: str, tokens: Tokens) -> int:
        """How many of the first tokens are cached; vLLM computes one at least."""
        end = BLOCK
        while end < len(tokens) and (salt, tokens[:end]) in self._blocks:
            self._blocks.move_to_end((salt, tokens[:end]))
            end += BLOCK
        return end - BLOCK

    def write(self, salt: str, tokens: Tokens) -> None:
        for end in range(BLOCK, len(tokens) + 1, BLOCK):
            self._blocks[salt, tokens[:end]] = None
            self._blocks.move_to_end((salt, tokens[:end]))
        while len(self._blocks) > self._room:
            self._blocks.popitem(last=False)


class Request:
    """A request under way: its tokens, and of which of them it has rows."""

    def __init__(self, prefixes: KeptPrefixes, cache: Cache, number: int, prompt: Tokens) -> None:
        self._cache = cache
        self.reading = prefixes.begin(CapturedPrompt(prompt))
        self._salt = self.reading.salt or f"own-{number}"
        self._prompt = len(prompt)
        self.tokens = prompt
        self.rows: set[int] = set()
        self.enter()

    def enter(self) -> None:
        """Compute what is not in the cache, as when it begins and after it was pushed out."""
        cached = self._cache.read(self._salt, self.tokens) if self.reading.salt is not None else 0
        self.rows |= {*range(cached, len(self.tokens))}
        self._cache.write(self._salt, self.tokens)

    def draw(self, token: int, *, compute: bool = True) -> None:
        self.tokens += (token,)
        if compute:
            self.rows.add(len(self.tokens) - 1)
            self._cache.write(self._salt, self.tokens)

    @property
    def answer(self) -> Tokens:
        return self.tokens[self._prompt :]


@settings(max_examples=500)
@given(
    st.integers(0, 6),
    st.integers(1, 12),
    st.lists(
        st.tuples(st.sampled_from(["begin", "begin", "draw", "push", "end", "fail"]), st.integers(0, 99), TOKENS),
        min_size=6,
        max_size=40,
    ),
)
def test_the_rows_of_a_request_are_computed_or_kept(
    most_kept: int, room: int, acts: list[tuple[str, int, Tokens]]
) -> None:
    """Requests begin, answer, are pushed out, end and fail in any order. vLLM may compute one token too many."""
    prefixes, cache = KeptPrefixes(BLOCK, most_kept, 2 * room + 6), Cache(room)
    kept: dict[str, Tokens] = {}
    running: list[Request] = []
    for number, (act, which, prompt) in enumerate(acts):
        if act == "begin":
            running.append(Request(prefixes, cache, number, prompt))
            continue
        if not running:
            continue
        request = running[which % len(running)]
        if act == "draw":
            request.draw(int(which % 5 == 0))
        elif act == "push":
            request.enter()
        else:
            running.remove(request)
            request.draw(int(which % 5 == 0), compute=which % 3 == 0)
            if act == "fail":
                prefixes.fail(request.reading, request.answer)
                continue
            change = prefixes.end(request.reading, request.answer)
            for block, key in enumerate(change.fill):
                assert kept[key] == request.tokens[: (block + 1) * BLOCK]
                request.rows |= {block * BLOCK, block * BLOCK + 1}
            assert request.rows >= {*range(len(request.tokens) - 1)}
            for block, key in change.keep:
                kept[key] = request.tokens[: (block + 1) * BLOCK]
            for key in change.forget:
                del kept[key]
            assert len(kept) == prefixes.kept


def test_the_second_job_reads_what_the_first_has_computed() -> None:
    prefixes = KeptPrefixes(BLOCK, kept=10, known=10)
    first = prefixes.begin(CapturedPrompt((1, 2, 3, 4, 5)))
    at_once = prefixes.begin(CapturedPrompt((1, 2, 3, 4, 6)))
    assert (first.kept, at_once.kept, at_once.salt) == (0, 0, None)
    change = prefixes.end(first, (7, 8))
    assert [block for block, _ in change.keep] == [0, 1, 2]
    second = prefixes.begin(CapturedPrompt((1, 2, 3, 4, 6)))
    assert (second.kept, second.salt) == (2, first.salt)
    assert list(second.keys) == [key for _, key in change.keep][:2]
    assert list(prefixes.end(second, (9,)).keep) == []


def test_what_the_engine_did_not_keep_is_not_read() -> None:
    prefixes = KeptPrefixes(BLOCK, kept=10, known=10)
    prefixes.undo(prefixes.end(prefixes.begin(CapturedPrompt((1, 2, 3))), (4, 5)))
    assert prefixes.begin(CapturedPrompt((1, 2, 3))).salt is None
    prefixes.start_anew()
    assert prefixes.begin(CapturedPrompt((1, 2, 5))).kept == 0


def test_rows_that_the_engine_kept_in_vain_are_forgotten_with_the_next_request() -> None:
    prefixes = KeptPrefixes(BLOCK, kept=10, known=10)
    undone = prefixes.end(prefixes.begin(CapturedPrompt((1, 2, 3, 4))), (5,))
    prefixes.undo(undone)
    change = prefixes.end(prefixes.begin(CapturedPrompt((1, 2, 6))), (7,))
    (first, _), (second, _) = ((key, block) for block, key in undone.keep)
    assert [key for _, key in change.keep] == [first]
    assert list(change.forget) == [second]
    assert list(prefixes.end(prefixes.begin(CapturedPrompt((8,))), (9,)).forget) == []


def test_media_and_adapters_are_other_blocks() -> None:
    prefixes = KeptPrefixes(BLOCK, kept=10, known=10)
    media = ((2, 3, "a picture"),)
    prefixes.end(prefixes.begin(CapturedPrompt((1, 2, 0, 0, 0, 3), None, media)), (4,))
    assert prefixes.begin(CapturedPrompt((1, 2, 0, 0, 0, 3), None, media)).kept == 3
    prefixes = KeptPrefixes(BLOCK, kept=10, known=10)
    prefixes.end(prefixes.begin(CapturedPrompt((1, 2, 0, 0, 0, 3), None, media)), (4,))
    assert prefixes.begin(CapturedPrompt((1, 2, 0, 0, 0, 3), None, ((2, 3, "another"),))).kept == 1
    assert prefixes.begin(CapturedPrompt((1, 2, 0, 0, 0, 3), "an adapter", media)).kept == 0


def test_a_rendered_prompt() -> None:
    place = SimpleNamespace(offset=1, length=2)
    rendered = {"prompt_token_ids": [5, 0, 0], "mm_placeholders": {"image": [place]}, "mm_hashes": {"image": ["abc"]}}
    assert prompt_of(rendered, "loud") == CapturedPrompt((5, 0, 0), "loud", ((1, 2, "abc"),))
    assert prompt_of({"prompt_token_ids": [5]}, None) == CapturedPrompt((5,))
    assert prompt_of({"prompt_token_ids": [5], "prompt_embeds": 0}, None) is None
    assert prompt_of({**rendered, "mm_hashes": {}}, None) is None
    assert prompt_of({**rendered, "mm_hashes": {"image": [None]}}, None) is None


def test_a_prompt_that_goes_on_as_another_request_may_answer_reads_nothing() -> None:
    prefixes = KeptPrefixes(BLOCK, kept=10, known=10)
    answering = prefixes.begin(CapturedPrompt((1,)))
    assert prefixes.begin(CapturedPrompt((1, 2, 3))).salt is None
    prefixes.fail(answering, (2, 3))
    assert prefixes.begin(CapturedPrompt((1, 2, 4))).salt is None


def test_the_last_token_may_have_been_computed_and_has_no_row() -> None:
    prefixes = KeptPrefixes(BLOCK, kept=10, known=10)
    prefixes.end(prefixes.begin(CapturedPrompt((1, 2, 3))), (4,))
    assert prefixes.begin(CapturedPrompt((1, 2, 3, 4, 5))).salt is None
    assert prefixes.begin(CapturedPrompt((1, 2, 3, 5, 5))).kept == 1


def test_what_a_request_reads_is_not_forgotten_before_its_end() -> None:
    prefixes = KeptPrefixes(BLOCK, kept=2, known=10)
    prefixes.end(prefixes.begin(CapturedPrompt((1, 2, 3, 4))), (5,))
    reading = prefixes.begin(CapturedPrompt((1, 2, 3, 4, 6)))
    change = prefixes.end(prefixes.begin(CapturedPrompt((7, 8, 9))), (0, 0))
    assert set(change.forget) & set(reading.keys) == set()
    assert reading.kept == 2
    assert set(prefixes.end(reading, (7,)).fill) == set(reading.keys)
    assert prefixes.kept == 2
