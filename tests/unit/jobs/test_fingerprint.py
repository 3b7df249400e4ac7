"""Errors are of one kind if they differ in numbers, ids, URLs and paths alone."""

import pytest

from omni_jobs.jobs.life.fingerprint import MOST_CHARACTERS, fingerprint, pattern

ALIKE = {
    "worker <id> was lost while it ran this": (
        "worker worker-e2c1bdcabb9d4a628d04b431e5de3f23 was lost while it ran this",
        "worker worker-0000000000004a628d04b431e5de3f23 was lost while it ran this",
    ),
    "<number> bytes, the limit is <number>": ("2,000,016 bytes, the limit is 1_000", "7 bytes, the limit is 1e9"),
    "<url> does not answer": ("http://10.0.0.7:8001/v1/chat does not answer", "s3://bucket/key?x=1 does not answer"),
    "no room in <path>": ("no room in /dev/shm/omni-jobs-ab12/x", "no room in ~/spool"),
    "job <id> and <id>": (
        "job job-01a1fd71a36f72a284df63f94cac8d2e and 0f5e8f60-4f3c-4b1a-9b0d-0123456789ab",
        "job job-7 and 0F5E8F60-4F3C-4B1A-9B0D-0123456789AB",
    ),
    "expected float<number> at <id>, got and/or": (
        "expected float16 at 0x7f35, got and/or",
        "expected float32 at sha256:0123456789abcdef, got and/or",
    ),
}


@pytest.mark.parametrize("shape", ALIKE)
def test_what_varies_is_left_out(shape: str) -> None:
    assert {pattern(message) for message in ALIKE[shape]} == {shape}
    assert len({fingerprint("model_error", "first", message) for message in ALIKE[shape]}) == 1


def test_code_stage_and_words_tell_kinds_apart() -> None:
    kinds = {
        fingerprint(*each)
        for each in (("a", "b", "c"), ("ab", "", "c"), ("a", "bc", ""), ("a", "b", "d"), ("a", "b", ""))
    }
    assert len(kinds) == 5
    assert all(len(each) == 32 for each in kinds)


@pytest.mark.parametrize("message", ["", "\0\ud800 ü 你好 ‮", "1" * 10_000_000, "/" * 10_000_000, "a-" * 5_000_000])
def test_any_message_has_one_and_a_long_one_costs_no_more(message: str) -> None:
    assert len(fingerprint("a", "b", message)) == 32
    assert len(pattern(message)) <= 9 * MOST_CHARACTERS


def test_what_stands_behind_the_beginning_does_not_count() -> None:
    begin = "x" * MOST_CHARACTERS
    assert fingerprint("a", "b", begin + "one") == fingerprint("a", "b", begin + "two")
