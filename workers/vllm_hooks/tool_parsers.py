"""vLLM's parsers of the calls of tools that models write, by the names of its registry."""

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.tool_parsers.abstract_tool_parser import ToolParserManager

from omni_jobs.errors import ConfigError, ModelError


def check_tool_parser(name: str) -> None:
    """Raise ConfigError, naming ``engine.tool_parser``, for a name that vLLM's registry lacks, or cannot import."""
    known = sorted({*ToolParserManager.tool_parsers, *ToolParserManager.lazy_parsers})
    if name not in known:
        nearest = " or ".join(get_close_matches(name, known, n=3, cutoff=0.6))
        hint = f"; did you mean {nearest}?" if nearest else f"; it has {', '.join(known)}"
        raise ConfigError(f"vLLM has no parser of tools {name!r:.60}{hint}", field="engine.tool_parser")
    try:
        ToolParserManager.get_tool_parser(name)
    except (ImportError, TypeError, AttributeError) as error:
        raise ConfigError(f"vLLM's parser {name} cannot be imported: {error}", field="engine.tool_parser") from error


class ToolTextParser:
    """Reads the calls in the text of one request."""

    def __init__(self, name: str, tokenizer: Any, tools: Sequence[Mapping[str, Any]]) -> None:
        """Make vLLM's parser for these tools, which stand in OpenAI's form. Raise ModelError where it refuses."""
        self._name = name
        try:
            request = ChatCompletionRequest.model_validate(
                {"messages": [], "model": "", "tools": list(tools), "tool_choice": "auto"}
            )
            offered: Any = request.tools
            self._parser = ToolParserManager.get_tool_parser(name)(tokenizer, offered)
            self._request: Any = self._parser.adjust_request(request)
        except Exception as error:  # a parser is another's code, and raises anything
            raise ModelError(f"the parser of tools {name} refuses: {error}", field="tools") from error

    @property
    def skips_special_tokens(self) -> bool:
        """Whether the text may lack special tokens; some models begin a call with one."""
        return bool(self._request.skip_special_tokens)

    def calls_in(self, text: str) -> tuple[str, list[tuple[str, str]]]:
        """Return the text that is no call, and (name, arguments as JSON) of each call. Raise ModelError if it fails."""
        try:
            found = self._parser.extract_tool_calls(text, self._request)
        except Exception as error:  # a parser is another's code, and raises anything
            raise ModelError(f"the parser of tools {self._name} fails: {error}", field="tools") from error
        if not found.tools_called:
            return text, []
        return found.content or "", [(call.function.name, call.function.arguments) for call in found.tool_calls]
