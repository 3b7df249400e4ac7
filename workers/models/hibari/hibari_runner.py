"""``HibariRunner``: runs the two stages that speak, on threads of the worker's process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from omni_jobs.errors import ModelError
from workers.models.hibari.engine_settings import HibariEngine
from workers.models.hibari.hibari_prompts import BINS, HOP, SAMPLING_RATE, SPECTRA, FeaturesPrompt, TextPrompt
from workers.models.hibari.prompts import check_speakable
from workers.models.hibari.spoken_text import SpokenText, spoken_text
from workers.runners.declared_component import declared_component
from workers.runners.in_process_runner import InProcessRunner
from workers.runners.runner import ProgressSink
from workers.stages.engine_args import OmniEngineArgs
from workers.stages.types import OmniModelRunnerOutput, Progress

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from workers.models.hibari.voice import Voice

_MOST_CHARACTERS = 1 << 18  # nobody says more within the longest max_speech_s, an hour
_SILENCE_SAMPLES = SAMPLING_RATE // 2  # in place of an answer that cannot be said: a file that every player takes
_SHOWN_WORDS = 5  # of those that are left out, in a warning


class _TooLong(Exception):
    """The text is longer than can be said."""


class HibariRunner(InProcessRunner[TextPrompt | FeaturesPrompt, HibariEngine]):
    """Speaks: the component ``acoustic`` makes features of a text, ``vocoder`` makes sound of them.

    The sentences of all prompts in flight take turns on ``num_workers`` threads, each made alone, so that speech does
    not depend on the company and a long text holds no short one up. The models compute without the interpreter's lock.
    """

    kind: ClassVar[str] = "hibari"  # of the stages that it runs; one of a plug-in has its own

    def __init__(self, args: OmniEngineArgs) -> None:
        """Take the stage's settings. Raises ConfigError for a stage without one of the two components."""
        super().__init__(args)
        self._model, _ = declared_component(args, self.kind)
        self._voices: dict[str, Voice] = {}

    def threads(self) -> int:
        return self.engine.num_workers or super().threads()

    def load(self) -> None:
        if self._model.component == "vocoder":
            import workers.models.hibari.vocoder  # noqa: F401 the first prompt need not wait for it

            return
        from workers.models.hibari.voice import Voice, default_voice  # loads onnxruntime

        for name in self._model.voices or (default_voice(),):
            loaded = tuple(self._voices.values())
            self._voices[name] = Voice(self._model.path, name, self.engine.threads, loaded)

    def free(self) -> None:
        self._voices = {}

    async def produce(self, prompt: TextPrompt | FeaturesPrompt, progress: ProgressSink) -> OmniModelRunnerOutput:
        """Run a TextPrompt (``acoustic``) or a FeaturesPrompt (``vocoder``), with progress in sentences.

        Of a text the output has the tensors and values of the flow ``acoustic_features``, of features those of
        ``waveform``. A cancelled run ends with the sentence that a thread has begun, which is dropped.
        What the voice cannot say is left out, and a warning names it. Of a text that takes longer than
        ``max_speech_s`` the begin is said, and an answer of a model in which there is nothing to say becomes silence;
        both with a warning. Raises ModelError for another prompt, an unknown voice, and another text in which there is
        nothing to say; OutOfMemory; and EngineDead once closed.
        """
        if self._model.component == "acoustic" and isinstance(prompt, TextPrompt):
            return await self._features(prompt, progress)
        if self._model.component == "vocoder" and isinstance(prompt, FeaturesPrompt):
            return await self._waveform(prompt, progress)
        raise ModelError(f"the component {self._model.component} takes no {type(prompt).__name__}")

    async def _features(self, prompt: TextPrompt, progress: ProgressSink) -> OmniModelRunnerOutput:
        if not prompt.is_answer:
            check_speakable(prompt.text, ModelError, "text")
        voice = self._voice(prompt.voice)
        said = await self.on_thread(lambda: spoken_text(prompt.text[:_MOST_CHARACTERS]))
        has_words = any(map(str.isalnum, said.text))  # signs alone are a breath
        sentences = await self.on_thread(lambda: voice.sentences(said.text)) if has_words else []
        warnings = _left_out(said)
        pieces: list[list[NDArray[Any]]] = []
        try:
            async for piece in self._pieces(voice, sentences, prompt, progress):
                pieces.append(piece)
            if len(prompt.text) > _MOST_CHARACTERS:
                raise _TooLong(f"the text has more than {_MOST_CHARACTERS} characters")
        except _TooLong as error:
            warnings.append({"code": "cut_short", "message": f"{error}; the rest is not said"})
        if not pieces:
            problem = "there is nothing to say: no word of the text has a sound"
            if not prompt.is_answer:
                raise ModelError(problem, field="text")
            warnings.append({"code": "nothing_said", "message": f"{problem}; the audio is silence"})
        progress(Progress(len(sentences), len(sentences), "sentences"))
        tensors = await self.on_thread(lambda: _joined(pieces))
        return OmniModelRunnerOutput(
            multimodal_outputs=tensors, values={"sampling_rate": SAMPLING_RATE}, warnings=warnings
        )

    async def _pieces(
        self, voice: Voice, sentences: Sequence[str], prompt: TextPrompt, progress: ProgressSink
    ) -> AsyncIterator[list[NDArray[Any]]]:
        """Yield the features of each piece of the sentences, of a first one that is too long its begin.

        Raises _TooLong at ``max_speech_s``.
        """
        left = max(int(self.engine.max_speech_s * SAMPLING_RATE) // HOP, 1)
        is_first = True
        for number, sentence in enumerate(sentences):
            progress(Progress(number, len(sentences), "sentences"))
            for phonemes in await self.on_thread(lambda: voice.phonemes(sentence)):  # noqa: B023 awaited here
                piece = await self.on_thread(lambda: voice.features(phonemes, prompt.parameters.speed))  # noqa: B023
                frames = len(piece[-1]) if piece else 0
                if frames > left:
                    if is_first:
                        yield [feature[..., :left] for feature in piece]
                    raise _TooLong(
                        f"the text takes more than {self.engine.max_speech_s:g} s to say: these are over in its "
                        f"sentence {number + 1} of {len(sentences)}"
                    )
                if frames:
                    left -= frames
                    is_first = False
                    yield piece

    def _voice(self, name: str | None) -> Voice:
        voice = next(iter(self._voices.values())) if name is None else self._voices.get(name)
        if voice is None:
            known = ", ".join(self._voices)
            raise ModelError(f"unknown voice {name!r:.60}; this stage has: {known}", field="audio.voice")
        return voice

    async def _waveform(self, prompt: FeaturesPrompt, progress: ProgressSink) -> OmniModelRunnerOutput:
        from workers.models.hibari.vocoder import sentence_features, speech_of

        noise = np.random.default_rng(prompt.seed)
        silence = np.zeros(round(prompt.parameters.pause_s * SAMPLING_RATE), np.float32)
        total = len(prompt.sentences)
        speech: list[NDArray[Any]] = []
        for number, features in enumerate(sentence_features(prompt.features, prompt.sentences)):
            progress(Progress(number, total, "sentences"))
            if number:
                speech.append(silence)
            speech.append(await self.on_thread(lambda: speech_of(features, noise)))  # noqa: B023 awaited here
        if not speech:
            speech.append(np.zeros(_SILENCE_SAMPLES, np.float32))
        progress(Progress(total, total, "sentences"))
        return OmniModelRunnerOutput(
            multimodal_outputs={"waveform": np.concatenate(speech)}, values={"sampling_rate": SAMPLING_RATE}
        )


def _left_out(said: SpokenText) -> list[dict[str, str]]:
    """Return the warning that names the words which the voice cannot say; none if it says all."""
    if not said.left_out:
        return []
    count = len(said.left_out)
    shown = " ".join(f"{word:.40}" for word in said.left_out[:_SHOWN_WORDS])
    more = " …" if count > _SHOWN_WORDS else ""
    words = "1 word is" if count == 1 else f"{count} words are"
    return [
        {"code": "left_out", "message": f"{words} not said in full, because the voice has no sound for: {shown}{more}"}
    ]


def _joined(pieces: list[list[NDArray[Any]]]) -> dict[str, NDArray[Any]]:
    """Return the tensors of the flow ``acoustic_features``. Empties the pieces, which are as large as the result."""
    lengths = np.asarray([len(piece[-1]) for piece in pieces], np.int64)
    if not pieces:
        spectra = {name: np.zeros((BINS, 0), np.float32) for name in SPECTRA}
        return spectra | {"f0": np.zeros(0, np.float32), "sentences": lengths}
    joined = {"f0": np.concatenate([piece.pop() for piece in pieces])}
    for name in reversed(SPECTRA):
        joined[name] = np.concatenate([piece.pop() for piece in pieces], axis=1)
    return joined | {"sentences": lengths}
