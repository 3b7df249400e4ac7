"""``WhisperParameters``: what a job may set for a stage that turns speech into text."""

from typing import Annotated, Literal

from pydantic import Field, field_validator

from omni_jobs.pipelines.parameters import StageParameters

# fmt: off
LANGUAGES = frozenset(
    {
        "af", "am", "ar", "as", "az", "ba", "be", "bg", "bn", "bo", "br", "bs", "ca", "cs", "cy", "da",
        "de", "el", "en", "es", "et", "eu", "fa", "fi", "fo", "fr", "gl", "gu", "ha", "haw", "he", "hi",
        "hr", "ht", "hu", "hy", "id", "is", "it", "ja", "jw", "ka", "kk", "km", "kn", "ko", "la", "lb",
        "ln", "lo", "lt", "lv", "mg", "mi", "mk", "ml", "mn", "mr", "ms", "mt", "my", "ne", "nl", "nn",
        "no", "oc", "pa", "pl", "ps", "pt", "ro", "ru", "sa", "sd", "si", "sk", "sl", "sn", "so", "sq",
        "sr", "su", "sv", "sw", "ta", "te", "tg", "th", "tk", "tl", "tr", "tt", "uk", "ur", "uz", "vi",
        "yi", "yo", "yue", "zh",
    }
)
# fmt: on
"""The codes of the languages that Whisper's multilingual models know."""


class WhisperParameters(StageParameters):
    """Parameters of a Whisper stage, with the names of OpenAI's transcriptions where these have one.

    The temperature is 0: CTranslate2 draws samples from a generator that no call can seed, so a job would not get the
    same text twice.
    """

    language: Annotated[
        str | None, Field(description="a code such as en; null: what the model hears in the first words")
    ] = None
    task: Annotated[
        Literal["transcribe", "translate"], Field(description="translate: write English, whatever is spoken")
    ] = "transcribe"
    prompt: Annotated[
        str | None, Field(max_length=1000, description="names and words that may come, in the text's own style")
    ] = None
    beam_size: Annotated[int, Field(ge=1, le=16, description="1: greedy; more: slower, a little better")] = 5
    temperature: Annotated[
        float, Field(ge=0, le=0, description="0 alone: samples could not be drawn the same way twice")
    ] = 0.0
    speech_threshold: Annotated[
        float, Field(ge=0.05, le=0.95, description="how sure the speech detector must be; lower hears more, and noise")
    ] = 0.5

    words: Annotated[bool, Field(description="whether the transcripts say when each word begins and ends")] = False

    subtitles: list[Literal["srt", "vtt"]] = Field(
        default_factory=list, max_length=2, description="files of what was heard: SubRip, WebVTT"
    )

    @field_validator("subtitles")
    @classmethod
    def _each_once(cls, value: list[str]) -> list[str]:
        if len(set(value)) < len(value):
            raise ValueError("names a format twice")
        return value

    @field_validator("language")
    @classmethod
    def _known(cls, value: str | None) -> str | None:
        if value is not None and value not in LANGUAGES:
            raise ValueError(f"{value!r:.20} is no language that Whisper knows; its codes are like en, de, zh")
        return value
