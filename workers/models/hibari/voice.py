"""``Voice``: one voice's acoustic model, and the way of a text to its features, sentence by sentence."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from hibari import Hibari  # type: ignore[import-untyped]
from hibari.voices import DEFAULT, VOICES  # type: ignore[import-untyped]

from omni_jobs.errors import ConfigError, ModelError, OutOfMemory
from workers.models.hibari.hibari_prompts import SPECTRA

if TYPE_CHECKING:
    from numpy.typing import NDArray

_INPUTS = {"ids", "speed"}
_OUTPUTS = len(SPECTRA) + 1

# The rules that make phonemes of words take time with the third power of a word's length, and hold the interpreter's
# lock: 78 s for 1,000 characters of 1/21/21/21/….
_WORD = re.compile(r"(\S{60})(?=\S)")
# Larger numbers have no name in the package, which takes all digits of some words for one number.
_NUMBER = re.compile(r"\d(?:,?\d){36,}")
_MOST_DIGITS = 36
_WORD_OF_DIGITS = re.compile(r"\S{37,}")
_BETWEEN_DIGITS = re.compile(r"(?<=\d)(?=\d)")
# The rules take a third of a second for 1,000 signs in which there is nothing to say.
_SIGNS = re.compile(r"([\W_]{40})[\W_]+")
# The model's time and memory grow with the second power of a piece: 800 phonemes take 0.3 s, and are 40 s of speech.
_SENTENCE_CHARACTERS = 1000
_LONGEST_PIECE = 800
_PIECE = 400


class Voice:
    """A loaded voice. Its calls block, the model's without the interpreter's lock, and may come from several threads.

    What it says is what the package's own ``Hibari.__call__`` says, except that it cuts words, numbers and sentences
    which are longer than anybody writes.
    """

    def __init__(self, model_dir: Path, name: str, threads: int, others: Sequence[Voice] = ()) -> None:
        """Load a voice's model from a directory, and the rules of its English unless one of ``others`` has the same.

        Raises ConfigError naming a voice that does not exist, or the file that is missing or is no voice.
        """
        if name not in VOICES:
            raise ConfigError(f"unknown voice {name!r:.60}; Hibari has: {', '.join(VOICES)}", field="voices")
        self.name = name
        self._british: bool = VOICES[name]["british"]
        file = model_dir / VOICES[name]["file"]
        if not file.is_file():
            raise ConfigError(f"the voice {name} is not here: put its file into the directory", file=str(file))
        rules: Any = next((other._hibari.g2p for other in others if other._british == self._british), None)
        try:
            self._hibari: Any = Hibari(voice=name, model=str(file), threads=threads, g2p=rules)
        except Exception as error:  # onnxruntime's errors have no common base
            raise ConfigError(f"no model of a voice: {error}", file=str(file)) from error
        session = self._hibari.sess
        if {one.name for one in session.get_inputs()} != _INPUTS or len(session.get_outputs()) != _OUTPUTS:
            raise ConfigError("no model of a voice: it has other inputs or outputs", file=str(file))
        self.features(self.phonemes("Ready.")[0], 1.0)  # reads the rules' files, and tries the model

    def sentences(self, text: str) -> list[str]:
        """Return the sentences of a text, none longer than 1,000 characters, in which no word is longer than 60.

        Of more than 40 signs in a row the first 40 are left.
        """
        text = _SIGNS.sub(r"\1 ", text)
        text = _NUMBER.sub(lambda number: " ".join(number.group().replace(",", "")), text)
        text = _WORD_OF_DIGITS.sub(_spelled, _WORD.sub(r"\1 ", text))
        whole: list[str] = self._hibari.split_sentences(text)
        return [piece for sentence in whole for piece in _cut(sentence, _SENTENCE_CHARACTERS, _SENTENCE_CHARACTERS)]

    def phonemes(self, sentence: str) -> list[str]:
        """Return the pieces of a sentence as phonemes; none where it has nothing to say.

        Raises ModelError for a text that the package's rules break on.
        """
        try:
            pieces: list[str] = self._hibari.phonemize(sentence)
        except Exception as error:  # a thousand rules for any text that people write
            raise ModelError(f"no phonemes for {sentence!r:.80}: {error}", field="text") from error
        return [part for piece in pieces for part in _cut(piece, _LONGEST_PIECE, _PIECE)]

    def features(self, phonemes: str, speed: float) -> list[NDArray[Any]]:
        """Return the features of some phonemes, as the flow ``acoustic_features`` has them: lh, th, ln, lr, phi, f0.

        None where the voice knows none of the phonemes. Raises ModelError and OutOfMemory.
        """
        ids = self._hibari.ids(phonemes)
        if len(ids) < 3:  # the pads alone
            return []
        inputs = {"ids": np.asarray([ids], np.int64), "speed": np.asarray([speed], np.float32)}
        with _model_errors():
            return [output[0] for output in self._hibari.sess.run(None, inputs)]


def default_voice() -> str:
    """Return the name of the voice that the package carries."""
    return str(DEFAULT)


def _spelled(found: re.Match[str]) -> str:
    """Return a word, its digits one by one if they are more than 36."""
    word = found.group()
    return _BETWEEN_DIGITS.sub(" ", word) if sum(map(str.isdigit, word)) > _MOST_DIGITS else word


def _cut(text: str, longest: int, size: int) -> list[str]:
    """Return a text whole if it is not over ``longest``, or else in pieces of at most ``size``, cut at spaces."""
    if len(text) <= longest:
        return [text]
    pieces: list[str] = []
    while len(text) > size:
        at = text.rfind(" ", 1, size + 1)
        at = size if at < 0 else at
        pieces.append(text[:at].strip())
        text = text[at:].strip()
    return [piece for piece in (*pieces, text) if piece]


@contextmanager
def _model_errors() -> Iterator[None]:
    try:
        yield
    except Exception as error:  # onnxruntime's errors have no common base
        if isinstance(error, MemoryError) or "alloc" in str(error).lower():
            raise OutOfMemory(f"there is too little memory for this sentence: {error}") from error
        raise ModelError(f"the voice broke on this text: {error}", field="text") from error
