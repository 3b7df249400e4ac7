"""The search for special tokens in a text finds what a search for each of them would, the longest at a place."""

import re

from hypothesis import given
from hypothesis import strategies as st

from omni_jobs.prompts.prompt_tokenizer import _any_of

LETTERS = "ab|(.?\\<é\n"


@given(
    words=st.lists(st.text(st.sampled_from(LETTERS), min_size=1, max_size=6), min_size=1, max_size=12),
    text=st.text(st.sampled_from(LETTERS), max_size=40),
)
def test_it_finds_the_longest_of_the_words_at_the_first_place(words: list[str], text: str) -> None:
    longest_first = sorted(words, key=len, reverse=True)
    expected = re.search("|".join(map(re.escape, longest_first)), text)
    found = re.search(_any_of(words), text)
    assert (found and found.span()) == (expected and expected.span())


def test_it_takes_the_tokens_of_a_codebook() -> None:
    pattern = re.compile(_any_of([*(f"<|dit_token_{n}|>" for n in range(16_512)), "<sop>"]))
    found = pattern.search("<" * 100 + "<|dit_token_16512|> <|dit_token_1651|>")
    assert found is not None
    assert found.group() == "<|dit_token_1651|>"
