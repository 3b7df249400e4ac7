"""``WhisperRunner``: runs Whisper on threads of the worker's process, many recordings at once."""

from __future__ import annotations

import math
import os
from collections.abc import Collection
from typing import TYPE_CHECKING

from omni_jobs.errors import ConfigError, EngineDead, ModelError
from workers.models.whisper.doubts import doubts
from workers.models.whisper.engine_settings import WhisperEngine
from workers.models.whisper.whisper_prompt import SAMPLING_RATE, Recording, WhisperPrompt
from workers.runners.model_threads import ModelThreads
from workers.runners.runner import ProgressSink
from workers.stages.engine_args import OmniEngineArgs
from workers.stages.types import Artifact, EnginePrompt, OmniModelRunnerOutput, Progress
from workers.transcripts.subtitles import MEDIA_TYPES, subtitles
from workers.transcripts.transcript import Segment, Transcript, joined_text, shown, values_of

if TYPE_CHECKING:
    from workers.models.whisper.transcriber import Transcriber


class WhisperRunner:
    """Transcribes recordings with CTranslate2. Implements ``Runner``.

    Recordings are cut into windows of at most 30 s. The windows of all prompts in flight take turns on
    ``num_workers`` threads, so that a long recording holds no short one up, and each is transcribed alone, so that a
    text does not depend on the company. CTranslate2 computes without the interpreter's lock: the event loop runs on.

    The model lives in the worker's process. Should native code crash, the worker ends and is started again, and the
    stage runs that it held are tried again like those of any lost worker.
    """

    def __init__(self, args: OmniEngineArgs) -> None:
        """Take the stage's settings. Raises ConfigError for a stage without a model or with another engine's."""
        if args.model is None:
            raise ConfigError("a Whisper stage needs a model", field="model", stage=args.stage)
        if not isinstance(args.engine, WhisperEngine):
            raise ConfigError("these are not the settings of Whisper's engine", field="engine", stage=args.stage)
        self._stage = args.stage
        self._path = args.model.path
        self._engine = args.engine
        self._device = args.device
        self._device_index = args.device_index or 0
        self._workers = args.engine.num_workers or min(args.max_in_flight, _cores() // args.engine.cpu_threads or 1)
        self._threads = ModelThreads(self._workers, args.stage)
        self._transcriber: Transcriber | None = None

    async def start(self) -> None:
        """Load the model. Raises ConfigError naming the file or the setting that is wrong, and OutOfMemory."""
        self._transcriber = await self._threads.run(self._load)

    def _load(self) -> Transcriber:
        from workers.models.whisper.transcriber import Transcriber  # loads CTranslate2 and onnxruntime: 0.5 s

        return Transcriber(self._path, self._engine, self._device, self._device_index, self._workers)

    async def run(self, prompt: EnginePrompt, progress: ProgressSink) -> OmniModelRunnerOutput:
        """Transcribe the recordings of a prompt, with progress in seconds of sound and the text so far.

        The output's text has a line for each recording, which is empty where nobody spoke; its values are those of
        ``workers.transcripts.transcript.values_of``, and its result has the ``transcripts`` as ``shown`` there. Its
        artifacts are the ``subtitles`` that are asked for, named by the stage: ``listen.srt``. A warning says where the
        model doubts what it wrote. A cancelled run ends with the window that a thread has begun, of a second or so,
        which is dropped. Raises ModelError for another kind of prompt, a language that the model does not
        know or a recording that breaks it, OutOfMemory, and EngineDead once closed.
        """
        if not isinstance(prompt, WhisperPrompt):
            raise ModelError(f"the Whisper runner takes a WhisperPrompt, not {type(prompt).__name__}")
        if self._transcriber is None:
            raise EngineDead("the Whisper runner is not running")
        self._transcriber.check(prompt.parameters)
        report = _Report(prompt, progress)
        transcripts: list[Transcript] = []
        for recording in prompt.recordings:
            transcripts.append(await self._transcript(self._transcriber, recording, prompt, report))
            report.finish(transcripts[-1])
        text = joined_text(transcripts)
        return OmniModelRunnerOutput(
            text=text,
            values=values_of(transcripts),
            result={"transcripts": shown(transcripts)},
            warnings=doubts(transcripts, self._transcriber.languages),
            artifacts=[
                Artifact(f"{self._stage}.{format}", MEDIA_TYPES[format], subtitles(transcripts, format), "text")
                for format in prompt.parameters.subtitles
            ],
        )

    async def _transcript(
        self, transcriber: Transcriber, recording: Recording, prompt: WhisperPrompt, report: _Report
    ) -> Transcript:
        segments: list[Segment] = []
        language: str | None = None
        begin = 0
        while begin < len(recording.samples):
            report.advance(begin, segments)
            at, known = begin, language
            heard = await self._threads.run(
                lambda: transcriber.hear(recording.samples, at, prompt.parameters, known)  # noqa: B023 awaited here
            )
            segments.extend(heard.segments)
            language = language or heard.language
            begin = heard.next
        return Transcript(recording.media, language, recording.duration_s, segments)

    async def close(self) -> None:
        """End the threads once the windows in them are done, and free the model."""
        self._transcriber = None
        await self._threads.close()

    @property
    def healthy(self) -> bool:
        return self._transcriber is not None

    @property
    def computing(self) -> Collection[int]:
        """The stage runs for which threads compute now."""
        return self._threads.computing


class _Report:
    """The progress of one prompt: seconds of its recordings that are done, and the text so far."""

    def __init__(self, prompt: WhisperPrompt, progress: ProgressSink) -> None:
        self._progress = progress
        self._total = math.ceil(sum(recording.duration_s for recording in prompt.recordings))
        self._done_s = 0.0  # of the recordings that are finished
        self._texts: list[str] = []

    def advance(self, samples: int, segments: list[Segment]) -> None:
        """Report that so many samples of a recording are done, with these segments."""
        text = "\n".join([*self._texts, "".join(segment.text for segment in segments).strip()])
        self._progress(Progress(int(self._done_s + samples / SAMPLING_RATE), self._total, "seconds", text))

    def finish(self, transcript: Transcript) -> None:
        """Report that a recording is done."""
        self._done_s += transcript.duration_s or 0.0
        self._texts.append(transcript.text)
        self._progress(Progress(round(self._done_s), self._total, "seconds", "\n".join(self._texts)))


def _cores() -> int:
    return len(os.sched_getaffinity(0))
