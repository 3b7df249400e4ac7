"""What a prompt asks of the text that follows it: a form, where it stops, logprobs, calls of tools."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from workers.runners.ar.parameters import ArParameters

if TYPE_CHECKING:
    from workers.runners.ar.prompts import OmniTextPrompt, OmniTokensPrompt

SCHEMA: Final = "response_format.json_schema.schema"
"""The field that a schema stands in, for errors."""

TOOLS: Final = "tools"

_FREE = ArParameters()


def text_parameters(prompt: OmniTextPrompt | OmniTokensPrompt) -> ArParameters:
    """Return a prompt's parameters; of a stage whose tokens are no text, those that ask for nothing of a text."""
    return prompt.parameters if isinstance(prompt.parameters, ArParameters) else _FREE


def schema_of(prompt: OmniTextPrompt | OmniTokensPrompt) -> tuple[str, str] | None:
    """Return the JSON schema that the text has to follow, as text, and the field that asks for it; None: there is none.

    It is that of the calls of tools which the model has to make, or that of ``response_format``.
    """
    if prompt.tools is not None and prompt.tools.schema_text is not None:
        return prompt.tools.schema_text, TOOLS
    wanted = text_parameters(prompt).response_format
    return None if wanted is None or wanted.schema_text is None else (wanted.schema_text, SCHEMA)


def text_arguments(prompt: OmniTextPrompt | OmniTokensPrompt) -> dict[str, Any]:
    """Return the arguments for vLLM's ``SamplingParams`` of what only a text has."""
    from vllm.sampling_params import StructuredOutputsParams

    parameters = text_parameters(prompt)
    arguments: dict[str, Any] = {"stop": list(parameters.stop)}
    if parameters.logprobs:
        arguments |= {"logprobs": parameters.top_logprobs, "flat_logprobs": True}
    wanted, schema = parameters.response_format, schema_of(prompt)
    if schema is not None:
        arguments["structured_outputs"] = StructuredOutputsParams(json=schema[0])
    elif wanted is not None and not wanted.is_free:
        arguments["structured_outputs"] = StructuredOutputsParams(json_object=True)
    return arguments
