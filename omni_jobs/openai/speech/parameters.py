"""``SPEECH``: what becomes of each parameter of a speech."""

from typing import Final

from omni_jobs.openai.parameters import ParameterTable, taken

SPEECH: Final = ParameterTable(
    "POST /v1/audio/speech",
    (
        taken("model", "the pipeline, which takes text and makes audio"),
        taken("input", "the text, as long as the pipeline takes it"),
        taken("voice", 'one of the pipeline\'s, or `{"id": …}` of one; default: its first'),
        taken("response_format", "`mp3` (default), `opus`, `aac`, `flac`, `wav`, `pcm`"),
        taken("speed", "the parameter of the stage that has one; else 1 alone"),
        taken("instructions", "the parameter of the stage that has one; else refused"),
        taken("stream_format", "`audio` (default), `sse`"),
        taken("seed", "not OpenAI's: as in `POST /v1/jobs`"),
        taken("stages", "not OpenAI's: parameters by stage, as in `POST /v1/jobs`"),
    ),
)
