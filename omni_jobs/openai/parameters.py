"""The parameters of the routes of OpenAI's API: which of them a route takes, ignores or refuses."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from omni_jobs.errors import InvalidRequest


class Use(StrEnum):
    """What a route does with a parameter."""

    TAKEN = "taken"
    IGNORED = "ignored"  # the answer names it in X-Ignored
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a route. ``note``: what it means here, or why it is not taken; docs/openai.md shows it."""

    name: str
    use: Use
    note: str


@dataclass(frozen=True, slots=True)
class ParameterTable:
    """The parameters of a route. A body is a JSON object, or a form's fields by name."""

    route: str
    parameters: tuple[Parameter, ...]

    def sort(self, body: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
        """Return the parameters of a body that are taken, and the names of those that are ignored. Null is no value.

        Raises InvalidRequest naming a parameter that is refused, or that the route does not know.
        """
        known = {parameter.name: parameter for parameter in self.parameters}
        taken: dict[str, Any] = {}
        ignored = []
        for name, value in body.items():
            parameter = known.get(name)
            if parameter is None:
                raise InvalidRequest("unknown key", field=f"{name:.64}")
            if value is None:
                continue
            if parameter.use is Use.REFUSED:
                raise InvalidRequest(f"not taken: {parameter.note}", field=name)
            if parameter.use is Use.IGNORED:
                ignored.append(name)
            else:
                taken[name] = value
        return taken, ignored


def _taken(name: str, note: str = "as in `POST /v1/jobs`") -> Parameter:
    return Parameter(name, Use.TAKEN, note)


def _ignored(name: str, note: str) -> Parameter:
    return Parameter(name, Use.IGNORED, note)


def _refused(name: str, note: str) -> Parameter:
    return Parameter(name, Use.REFUSED, note)


CHAT_COMPLETIONS: Final = ParameterTable(
    "POST /v1/chat/completions",
    (
        _taken("model", "the pipeline, which takes text and makes text"),
        _taken("messages", "the role `developer` is `system`; media as in `POST /v1/jobs`"),
        _taken("modalities", "`text`, `audio`"),
        _taken("audio", '`voice`, or `{"id": …}` of one; `format`: `wav`, `mp3`, `flac`, `opus`, `aac`, `pcm16`'),
        _taken("stream", "the text as it grows, see below"),
        _taken("stream_options", "`include_usage`; `include_obfuscation` is ignored"),
        _taken("n", "1 to 16 choices, a job each"),
        _taken("max_completion_tokens"),
        _taken("max_tokens"),
        _taken("temperature"),
        _taken("top_p"),
        _taken("presence_penalty"),
        _taken("frequency_penalty"),
        _taken("seed", "of the first choice; each further choice has the next one"),
        _taken("stop", "a string, or up to 4"),
        _taken("response_format"),
        _taken("logprobs"),
        _taken("top_logprobs"),
        _taken("tools", "of type `function`"),
        _taken("tool_choice", "`none`, `auto`, `required`, or one function"),
        _taken("parallel_tool_calls"),
        _taken("metadata", "the job's"),
        _taken("service_tier", "`priority` and `fast`: high priority; `flex`: low; others: normal"),
        _taken("stages", "not OpenAI's: parameters by stage, as in `POST /v1/jobs`"),
        _taken("top_k", "vLLM's: a parameter of the stage that makes the text; -1: all tokens"),
        _taken("min_p", "vLLM's, as `top_k`"),
        _taken("repetition_penalty", "vLLM's, as `top_k`"),
        _taken("min_tokens", "vLLM's, as `top_k`"),
        _taken("ignore_eos", "vLLM's, as `top_k`"),
        _ignored("prediction", "it makes no answer faster here"),
        _ignored("prompt_cache_key", "engines find what they have by themselves"),
        _ignored("prompt_cache_options", "engines find what they have by themselves"),
        _ignored("prompt_cache_retention", "engines find what they have by themselves"),
        _ignored("reasoning_effort", "no pipeline has it as a parameter"),
        _ignored("safety_identifier", "the key says who asks"),
        _ignored("store", "every job is stored, for the time that the operator set"),
        _ignored("user", "the key says who asks"),
        _ignored("verbosity", "no pipeline has it as a parameter"),
        _refused("function_call", "send `tool_choice`"),
        _refused("functions", "send `tools`"),
        _refused("logit_bias", "no stage has it"),
        _refused("moderation", "nothing here moderates"),
        _refused("web_search_options", "nothing here searches the web"),
    ),
)
