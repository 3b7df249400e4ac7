"""``TRANSCRIPTIONS``: what becomes of each parameter of a transcription."""

from typing import Final

from omni_jobs.openai.parameters import ParameterTable, ignored, refused, taken

TRANSCRIPTIONS: Final = ParameterTable(
    "POST /v1/audio/transcriptions",
    (
        taken("file", "the recording; its bytes say what it is, and its name is dropped"),
        taken("model", "the pipeline, which makes text of sound, and of no text in between"),
        taken("response_format", "`json` (default), `text`, `srt`, `vtt`, `verbose_json`; no `diarized_json`"),
        taken("stream", "the text as it grows, with `json` alone"),
        taken("timestamp_granularities", "`segment` (default), `word`; with `verbose_json` alone"),
        taken("language", "the parameter of the stage that makes the text; refused where it has none"),
        taken("prompt", "as `language`"),
        taken("temperature"),
        taken("include", "`logprobs`, with `json`, where the stage that makes the text tells them"),
        taken("seed", "not OpenAI's: as in `POST /v1/jobs`"),
        taken(
            "stages",
            "not OpenAI's: parameters by stage, as in `POST /v1/jobs`; JSON, or in parts",
        ),
        ignored("chunking_strategy", "the stage that hears cuts the sound as its model wants it"),
        refused("keywords", "send `prompt`"),
        refused("languages", "send `language`"),
        refused("known_speaker_names", "no stage tells speakers apart"),
        refused("known_speaker_references", "no stage tells speakers apart"),
    ),
)
