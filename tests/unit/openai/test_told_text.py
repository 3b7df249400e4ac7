"""``ToldText``: the client is told a text that the last attempt has written too, or is told that there is none."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omni_jobs.errors import TextChanged
from omni_jobs.openai.told_text import ToldText

TEXT = st.text("ab漢😀", max_size=40)


def pieces(text: str, cuts: list[int]) -> list[str]:
    ends = sorted({cut % (len(text) + 1) for cut in cuts} | {0, len(text)})
    return [text[start:end] for start, end in pairwise(ends)]


@given(TEXT, st.lists(st.tuples(st.integers(0, 40), st.lists(st.integers(0, 40))), max_size=4))
def test_attempts_that_agree_are_one_text(text: str, attempts: list[tuple[int, list[int]]]) -> None:
    told = ToldText()
    heard = ""
    for number, (length, cuts) in enumerate(attempts, 1):
        told.begin(number)
        for piece in pieces(text[:length], cuts):
            heard += told.add(piece)
            told.begin(number)
    assert text.startswith(heard)
    assert heard + told.add_whole(text) == text


@given(TEXT, TEXT, st.lists(st.integers(0, 40)))
def test_attempts_that_differ_are_found(first: str, second: str, cuts: list[int]) -> None:
    told = ToldText()
    told.begin(1)
    told.add(first)
    told.begin(2)
    agrees = second.startswith(first) or first.startswith(second)
    try:
        heard = "".join(map(told.add, pieces(second, cuts)))
    except TextChanged:
        assert not agrees
        return
    assert agrees
    assert first + heard == max(first, second, key=len)


@given(TEXT, TEXT)
def test_a_whole_text_is_what_was_told_and_more(said: str, whole: str) -> None:
    told = ToldText()
    told.begin(1)
    told.add(said)
    if whole.startswith(said):
        assert said + told.add_whole(whole) == whole
    else:
        with pytest.raises(TextChanged):
            told.add_whole(whole)
