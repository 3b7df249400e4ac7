"""``Transcriber``: a Whisper model in CTranslate2's form, which transcribes one window of a recording at a time."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from faster_whisper import WhisperModel  # type: ignore[import-untyped]

from omni_jobs.errors import ConfigError, ModelError, OutOfMemory
from workers.models.whisper.engine_settings import WhisperEngine
from workers.models.whisper.languages import check_parameters, languages_of
from workers.models.whisper.parameters import WhisperParameters
from workers.models.whisper.prompts import check_whisper_directory
from workers.models.whisper.speech_windows import Window, next_window
from workers.models.whisper.whisper_prompt import SAMPLING_RATE
from workers.transcripts.transcript import Segment, Word

if TYPE_CHECKING:
    from numpy.typing import NDArray

# A model that hears no words may repeat a phrase without end. Such a text compresses well, as Whisper's authors found
# (2.4), and has more characters than a person says in the time: nobody keeps up 30 in a second.
_REPETITIVE = 2.4
_FASTEST_SPEECH = 30


class Heard(NamedTuple):
    """What was heard in one window; ``next``: the sample at which the next window begins."""

    segments: tuple[Segment, ...]
    language: str | None  # None: nobody spoke
    next: int


class Transcriber:
    """A loaded Whisper model. Its calls block without the interpreter's lock, and may come from several threads.

    ``languages``: the codes of those that it knows.
    """

    def __init__(self, model_dir: Path, engine: WhisperEngine, device: str, device_index: int, workers: int) -> None:
        """Load the model and try it on a second of silence.

        Raises ConfigError naming the file or the setting that is wrong, and OutOfMemory.
        """
        check_whisper_directory(model_dir)
        self.languages = languages_of(model_dir)
        with _load_errors(model_dir):
            self._model = WhisperModel(
                str(model_dir),
                device=device,
                device_index=device_index,
                compute_type=engine.compute_type,
                cpu_threads=engine.cpu_threads,
                num_workers=workers,
                local_files_only=True,
            )
            self._check_mels(model_dir)
            silence = np.zeros(SAMPLING_RATE, np.float32)
            self._transcribe(silence, WhisperParameters(beam_size=1), "en")
            next_window(silence, 0, 0.5)  # loads the detector of speech

    def _check_mels(self, model_dir: Path) -> None:
        mels = len(self._model.feature_extractor.mel_filters)
        if mels != self._model.model.n_mels:
            raise ConfigError(
                f"the model takes {self._model.model.n_mels} mel bands, and this file or its absence gives {mels}",
                file=str(model_dir / "preprocessor_config.json"),
            )

    def check(self, parameters: WhisperParameters) -> None:
        """Raise ModelError naming the parameter that this model cannot follow."""
        check_parameters(parameters, self.languages, ModelError)

    def hear(
        self, samples: NDArray[Any], begin: int, parameters: WhisperParameters, language: str | None = None
    ) -> Heard:
        """Transcribe the window of a recording, float32 [T] at 16 kHz, that begins at sample ``begin``.

        ``language``: that of the windows before; None: the parameters', or else what the model hears. Where nobody
        speaks there are no segments. Raises OutOfMemory, and ModelError where the model breaks.
        """
        with _model_errors():
            window = next_window(samples, begin, parameters.speech_threshold)
            if window.end <= window.begin:
                return Heard((), None, window.next)
            piece = samples[window.begin : window.end]
            segments, heard = self._transcribe(piece, parameters, language or parameters.language)
            if _is_repetition(segments, window):
                segments, heard = self._transcribe(piece, parameters, heard, no_repeat_ngram_size=3)
                if _is_too_fast(segments, window):
                    segments = []
        return Heard(tuple(_moved(segments, window)), heard if segments else None, window.next)

    def _transcribe(
        self, piece: NDArray[Any], parameters: WhisperParameters, language: str | None, **options: Any
    ) -> tuple[list[Segment], str]:
        # The text before a window is no prompt for it: a phrase that was made up once would come again and again.
        found, info = self._model.transcribe(
            piece,
            language=language,
            task=parameters.task,
            beam_size=parameters.beam_size,
            temperature=parameters.temperature,
            initial_prompt=parameters.prompt,
            condition_on_previous_text=False,
            word_timestamps=parameters.words,
            **options,
        )
        return [_segment(one) for one in found if any(map(str.isalnum, one.text))], info.language


def _segment(found: Any) -> Segment:
    """Return a segment of faster-whisper's as one of ours, whose times are seconds from the window's begin."""
    words = tuple(Word(word.start, word.end, word.word) for word in found.words or ())
    measured = (found.avg_logprob, found.no_speech_prob, found.compression_ratio)
    return Segment(found.start, found.end, found.text, words, *measured)


def _moved(segments: list[Segment], window: Window) -> Iterator[Segment]:
    """Yield segments with times from the recording's begin; the model may give an end beyond the window's."""

    def moved(at_s: float) -> float:
        return round(min(window.begin / SAMPLING_RATE + float(at_s), window.end / SAMPLING_RATE), 2)

    for segment in segments:
        words = tuple(Word(moved(word.start_s), moved(word.end_s), word.text) for word in segment.words)
        yield segment._replace(start_s=moved(segment.start_s), end_s=moved(segment.end_s), words=words)


def _is_repetition(segments: list[Segment], window: Window) -> bool:
    text = "".join(segment.text for segment in segments).encode()
    return _is_too_fast(segments, window) and len(text) / len(zlib.compress(text)) > _REPETITIVE


def _is_too_fast(segments: list[Segment], window: Window) -> bool:
    characters = sum(len(segment.text) for segment in segments)
    return characters > _FASTEST_SPEECH * max(window.spoken / SAMPLING_RATE, 1.0)


@contextmanager
def _load_errors(model_dir: Path) -> Iterator[None]:
    try:
        yield
    except ConfigError:
        raise
    except ValueError as error:
        field = "engine.compute_type" if "compute type" in str(error) else "device"
        raise ConfigError(str(error), field=field) from error
    except (RuntimeError, MemoryError) as error:
        _raise_if_out_of_memory(error)
        raise ConfigError(f"not a Whisper model: {error}", file=str(model_dir / "model.bin")) from error
    except Exception as error:  # the tokenizers package raises nothing narrower
        raise ConfigError(f"cannot be read: {error}", file=str(model_dir / "tokenizer.json")) from error


@contextmanager
def _model_errors() -> Iterator[None]:
    try:
        yield
    except (RuntimeError, ValueError, MemoryError) as error:
        _raise_if_out_of_memory(error)
        raise ModelError(f"the model broke on this recording: {error}") from error


def _raise_if_out_of_memory(error: Exception) -> None:
    if isinstance(error, MemoryError) or "out of memory" in str(error).lower():
        raise OutOfMemory(f"there is too little memory for the model: {error}") from error
