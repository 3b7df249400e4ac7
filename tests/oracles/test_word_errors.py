"""Error rates that were counted by hand, and rules that hold for any two texts."""

import re
import string
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.oracles.sentences import SENTENCES
from tests.oracles.word_errors import word_error_rate, words_of

TEXTS = st.lists(st.sampled_from(["the", "cat", "saw", "a", "dog", "and", "ran", "home"]), max_size=8).map(" ".join)


@pytest.mark.parametrize(
    ("said", "heard", "errors", "words"),
    [
        ("the cat saw the dog", "the cat saw the dog", 0, 5),
        ("the cat saw the dog", "the cat saw a dog", 1, 5),
        ("the cat saw the dog", "the cat saw dog", 1, 5),
        ("the cat saw the dog", "the cat often saw the dog", 1, 5),
        ("the cat saw the dog", "cat saw the dog the", 2, 5),
        ("the cat saw the dog", "a bird heard my song", 5, 5),
        ("the cat saw the dog", "", 5, 5),
        ("the cat saw the dog", "dog the saw cat the", 4, 5),
        ("cat", "the cat saw the dog", 4, 1),
        ("the cat saw the dog and ran home", "cat saw a big dog and home", 4, 8),
    ],
)
def test_errors_counted_by_hand(said: str, heard: str, errors: int, words: int) -> None:
    assert word_error_rate(said, heard) == errors / words


@pytest.mark.parametrize(
    ("said", "heard"),
    [
        ("Open the window, please!", "open the window please"),
        ("I don't know; we can't go, and he won't.", "I do not know. We cannot go and he will not."),
        ("It's late, they're gone and I'll follow.", "It is late, they are gone, and I will follow."),
        ("It’s late.", "it's late"),
        ("Well... it's late...", "Well, it's late."),
        ("Well…yes", "Well, yes."),
        ("Twenty-five people paid two hundred dollars.", "25 people paid $200."),
        ("One of them ate seven.", "1 of them ate 7."),
        ("Four thousand two hundred", "4,200"),
        ("Half of it, or fifty percent.", "half of it or 50%"),
        ("Turn left at the second corner.", "turn left at the 2nd corner"),
        ("The meeting begins on the twenty-third of May.", "the meeting begins on the 23rd of May"),
        ("Mister Smith is here.", "Mr. Smith is here"),
        ("Well, um, the cat [laughs] slept.", "Well, the cat slept."),
    ],
)
def test_two_ways_to_write_the_same_speech_are_equal(said: str, heard: str) -> None:
    assert words_of(said) == words_of(heard)
    assert word_error_rate(said, heard) == 0


@pytest.mark.parametrize(
    ("said", "heard", "errors", "words"),
    [
        ("She can go.", "She can't go.", 1, 3),
        ("We need three eggs.", "We need 4 eggs.", 1, 4),
        ("We need twenty-five eggs.", "We need 20 eggs.", 1, 4),
        ("He does not know.", "He doesn't no.", 1, 4),
        ("I'll go.", "I go.", 1, 3),
    ],
)
def test_what_sounds_different_is_an_error(said: str, heard: str, errors: int, words: int) -> None:
    assert word_error_rate(said, heard) == errors / words


@pytest.mark.parametrize("said", ["", "  ", "... !", "[music]"])
def test_no_rate_says_how_wrong_nothing_was_heard(said: str) -> None:
    with pytest.raises(ValueError, match="nothing was said"):
        word_error_rate(said, "the cat")


@settings(max_examples=200, deadline=None)
@given(TEXTS.filter(bool), TEXTS.filter(bool), TEXTS.filter(bool))
def test_the_errors_are_a_distance(one: str, two: str, three: str) -> None:
    def errors(said: str, heard: str) -> int:
        return round(word_error_rate(said, heard) * len(said.split()))

    assert (errors(one, two) == 0) == (one == two)
    assert errors(one, two) == errors(two, one)
    assert errors(one, three) <= errors(one, two) + errors(two, three)
    lengths = len(one.split()), len(two.split())
    assert abs(lengths[0] - lengths[1]) <= errors(one, two) <= max(lengths)


# The sentences.


def test_the_sentences_are_thirty_plain_ones_of_5_to_20_words() -> None:
    assert len(set(SENTENCES)) == 30
    for sentence in SENTENCES:
        assert re.fullmatch(r"[A-Z][a-zA-Z ,-]*[.?]", sentence), sentence
        assert 5 <= len(sentence.split()) <= 20, sentence
    assert len({word for sentence in SENTENCES for word in words_of(sentence)}) > 150


def test_how_a_sentence_is_written_down_does_not_matter() -> None:
    bare = str.maketrans("", "", string.punctuation.replace("-", ""))
    for sentence in SENTENCES:
        assert word_error_rate(sentence, sentence) == 0
        assert word_error_rate(sentence, sentence.lower().translate(bare).replace("-", " ")) == 0, sentence


def test_no_sentence_is_nearly_another_one() -> None:
    for one, other in product(SENTENCES, SENTENCES):
        assert one == other or word_error_rate(one, other) > 0.5, (one, other)
