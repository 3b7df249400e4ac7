"""``WhisperRunner``: runs Whisper on threads of the worker's process, many recordings at once."""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING, ClassVar

from omni_jobs.errors import EngineDead
from workers.models.whisper.doubts import doubts
from workers.models.whisper.engine_settings import WhisperEngine
from workers.models.whisper.whisper_prompt import SAMPLING_RATE, Recording, WhisperPrompt
from workers.runners.declared_component import declared_component
from workers.runners.in_process_runner import InProcessRunner
from workers.runners.runner import ProgressSink
from workers.stages.engine_args import OmniEngineArgs
from workers.stages.types import Artifact, OmniModelRunnerOutput, Progress
from workers.transcripts.subtitles import MEDIA_TYPES, subtitles
from workers.transcripts.transcript import Segment, Transcript, joined_text, shown, values_of

if TYPE_CHECKING:
    from workers.models.whisper.transcriber import Transcriber


class WhisperRunner(InProcessRunner[WhisperPrompt, WhisperEngine]):
    """Transcribes recordings with CTranslate2.

    Recordings are cut into windows of at most 30 s. The windows of all prompts in flight take turns on
    ``num_workers`` threads, so that a long recording holds no short one up, and each is transcribed alone, so that a
    text does not depend on the company. CTranslate2 computes without the interpreter's lock: the event loop runs on.
    """

    kind: ClassVar[str] = "whisper"  # of the stages that it runs; one of a plug-in has its own

    def __init__(self, args: OmniEngineArgs) -> None:
        """Take the stage's settings. Raises ConfigError for a stage without a model or with another engine's."""
        super().__init__(args)
        self._model, _ = declared_component(args, self.kind)
        self._transcriber: Transcriber | None = None

    def threads(self) -> int:
        cores = len(os.sched_getaffinity(0))
        return self.engine.num_workers or min(self.args.max_in_flight, cores // self.engine.cpu_threads or 1)

    def load(self) -> None:
        from workers.models.whisper.transcriber import Transcriber  # loads CTranslate2 and onnxruntime: 0.5 s

        device, index = self.args.device, self.args.device_index or 0
        self._transcriber = Transcriber(self._model.path, self.engine, device, index, self.threads())

    def free(self) -> None:
        self._transcriber = None

    async def produce(self, prompt: WhisperPrompt, progress: ProgressSink) -> OmniModelRunnerOutput:
        """Transcribe the recordings of a prompt, with progress in seconds of sound and the text so far.

        The output's text has a line for each recording, which is empty where nobody spoke; its values are those of
        ``workers.transcripts.transcript.values_of``, and its result has the ``transcripts`` as ``shown`` there. Its
        artifacts are the ``subtitles`` that are asked for, named by the stage: ``listen.srt``. A warning says where the
        model doubts what it wrote. A cancelled run ends with the window that a thread has begun, of a second or so,
        which is dropped. Raises ModelError for a language that the model does not know or a recording that breaks it,
        OutOfMemory, and EngineDead once closed.
        """
        transcriber = self._transcriber
        if transcriber is None:
            raise EngineDead("the model is not loaded", stage=self.args.stage)
        transcriber.check(prompt.parameters)
        report = _Report(prompt, progress)
        transcripts: list[Transcript] = []
        for recording in prompt.recordings:
            transcripts.append(await self._transcript(transcriber, recording, prompt, report))
            report.finish(transcripts[-1])
        text = joined_text(transcripts)
        return OmniModelRunnerOutput(
            text=text,
            values=values_of(transcripts),
            result={"transcripts": shown(transcripts)},
            warnings=doubts(transcripts, transcriber.languages),
            artifacts=[
                Artifact(f"{self.args.stage}.{format}", MEDIA_TYPES[format], subtitles(transcripts, format), "text")
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
            heard = await self.on_thread(
                lambda: transcriber.hear(recording.samples, at, prompt.parameters, known)  # noqa: B023 awaited here
            )
            segments.extend(heard.segments)
            language = language or heard.language
            begin = heard.next
        return Transcript(recording.media, language, recording.duration_s, segments)


class _Report:
    """The progress of one prompt: seconds of its recordings that are done, and the text so far."""

    def __init__(self, prompt: WhisperPrompt, progress: ProgressSink) -> None:
        self._progress = progress
        self._total = math.ceil(sum(recording.duration_s for recording in prompt.recordings))
        self._done_s = 0.0  # of the recordings that are finished
        self._texts: list[str] = []

    def advance(self, samples: int, segments: list[Segment]) -> None:
        """Report that the first ``samples`` of a recording are done, with these segments."""
        text = "\n".join([*self._texts, "".join(segment.text for segment in segments).strip()])
        self._progress(Progress(int(self._done_s + samples / SAMPLING_RATE), self._total, "seconds", text))

    def finish(self, transcript: Transcript) -> None:
        """Report that a recording is done."""
        self._done_s += transcript.duration_s or 0.0
        self._texts.append(transcript.text)
        self._progress(Progress(round(self._done_s), self._total, "seconds", "\n".join(self._texts)))
