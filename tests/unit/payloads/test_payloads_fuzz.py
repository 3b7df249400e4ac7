"""Bytes of any kind: the corpus answers as it did, and a short run of the fuzzer breaks nothing."""

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz.answers import Broken, Decoder, answer
from tests.fuzz.corpus import CORPUS, Collected, cases
from tests.fuzz.mutations import Mutator
from tests.fuzz.payloads import fuzz
from tests.fuzz.seeds import seeds

ROOT = Path(__file__).parents[3]


def test_the_corpus_answers_as_it_did() -> None:
    listed = cases()
    assert {case.file for case in listed} == {path.name for path in CORPUS.glob("*.safetensors")}
    for case in listed:
        found = answer(case.decoder, case.data(), with_peak=True)
        assert (found.error, found.field) == (case.error, case.field), case.file
        answer(next(other for other in Decoder if other is not case.decoder), case.data())


def test_a_short_run() -> None:
    fuzzed = fuzz(3000, seed=20260101)
    assert not fuzzed.broken
    assert fuzzed.inputs == 3000
    assert fuzzed.accepted > 100
    assert len(fuzzed.collected) > 60


def test_the_command(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.fuzz.payloads", "--inputs", "100", "--json", tmp_path / "found.json"]
    subprocess.run([*command, "--corpus", tmp_path / "corpus"], cwd=ROOT, check=True, capture_output=True, timeout=60)
    figures = {figure["name"]: figure for figure in json.loads((tmp_path / "found.json").read_text(encoding="utf-8"))}
    assert figures["broken promises"]["met"] is True
    assert (tmp_path / "corpus" / "answers.json").exists()


def test_an_input_is_drawn_from_the_seed_and_its_number_alone() -> None:
    files = seeds()
    assert files == seeds()
    one, other = Mutator(files, 7), Mutator(files, 7)
    backwards = {index: other.damaged(index) for index in reversed(range(300))}
    assert [one.damaged(index) for index in range(300)] == [backwards[index] for index in range(300)]
    assert one.damaged(0) != Mutator(files, 8).damaged(0)


def test_of_each_kind_the_shortest_is_kept(tmp_path: Path) -> None:
    collected = Collected()
    for data in (b"x" * 5, b"y" * 3, b"z" * 4, random.Random(0).randbytes(4000)):
        collected.add(Decoder.PAYLOAD, data, answer(Decoder.PAYLOAD, data))
    collected.write(tmp_path)
    assert [path.read_bytes() for path in tmp_path.glob("*.safetensors")] == [b"yyy"]


@pytest.mark.parametrize(
    ("outcome", "why"),
    [(RecursionError("too deep"), "RecursionError"), (MemoryError(), "MemoryError"), (ValueError("x"), "ValueError")],
)
def test_what_breaks_a_decoder_is_told(outcome: Exception, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def decode(decoder: Decoder, data: bytes) -> None:
        raise outcome

    monkeypatch.setattr(Decoder, "decode", decode)
    with pytest.raises(Broken, match=why):
        answer(Decoder.PAYLOAD, b"")


def test_memory_over_the_bound_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    decode = Decoder.decode

    def greedy(decoder: Decoder, data: bytes) -> object:
        _ = bytearray(1 << 20)
        return decode(decoder, data)

    monkeypatch.setattr(Decoder, "decode", greedy)
    with pytest.raises(Broken, match="bytes of memory"):
        answer(Decoder.PAYLOAD, seeds()[0], with_peak=True)
