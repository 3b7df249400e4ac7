"""``tool_use_of``: whether a job may offer its model tools, and what its admitted request says of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from omni_jobs.errors import InvalidRequest
from omni_jobs.pipelines.json_schema import check_keywords
from omni_jobs.prompts.renderers import PromptRenderer, ToolsRenderer
from omni_jobs.requests.job_request import JobRequest
from omni_jobs.requests.tools import NamedTool, Tool

if TYPE_CHECKING:
    from omni_jobs.pipelines.stage_config import Pipeline, StageConfig


def tool_use_of(
    request: JobRequest,
    pipeline: Pipeline,
    stages: Sequence[StageConfig],
    parameters: Mapping[str, Mapping[str, Any]],
    renderer: PromptRenderer | None,
) -> dict[str, Any]:
    """Return ``tools``, ``tool_choice`` and ``parallel_tool_calls`` for the admitted request, as far as it has them.

    Raises InvalidRequest naming the field where the pipeline calls no tools, and for a choice that does not fit.
    """
    asked = next(_fields(request), None)
    if asked is None:
        return {}
    stage = _calling_stage(pipeline, stages)
    if stage is None:
        raise InvalidRequest(f"no stage of pipeline {pipeline.name} that answers the messages calls tools", field=asked)
    if renderer is not None and not (isinstance(renderer, ToolsRenderer) and renderer.takes_tools):
        raise InvalidRequest(f"the chat template of {pipeline.name}'s checkpoint knows no tools", field=asked)
    if request.tools is None:
        for field in ("tool_choice", "parallel_tool_calls"):
            if getattr(request, field) is not None:
                raise InvalidRequest("given, and there are no tools", field=field)
        return {}
    choice = request.tool_choice or "auto"
    _check_choice(choice, request.tools)
    merged = stage.parameters_with(parameters.get(stage.name, {}))
    wanted = getattr(merged, "response_format", None)
    if choice not in ("none", "auto") and any(getattr(merged, name, None) for name in ("min_tokens", "ignore_eos")):
        raise InvalidRequest(
            "a call ends by itself: neither ignore_eos nor min_tokens goes with it", field="tool_choice"
        )
    if choice != "none" and wanted is not None and not wanted.is_free:
        raise InvalidRequest(
            "calls of tools have a form of their own: tool_choice must be none", field="response_format"
        )
    return {
        "tools": [_as_json(tool) for tool in request.tools],
        "tool_choice": choice if isinstance(choice, str) else choice.model_dump(),
        "parallel_tool_calls": request.parallel_tool_calls is not False,
    }


def _fields(request: JobRequest) -> Iterator[str]:
    """Yield the fields of a request that have to do with tools."""
    for field in ("tools", "tool_choice", "parallel_tool_calls"):
        if getattr(request, field) is not None:
            yield field
    for number, message in enumerate(request.messages or ()):
        if message.tool_calls:
            yield f"messages.{number}.tool_calls"
        if message.role == "tool":
            yield f"messages.{number}.role"


def _calling_stage(pipeline: Pipeline, stages: Sequence[StageConfig]) -> StageConfig | None:
    """Return the stage that makes the job's text of its messages, if that can call tools; else None."""
    output = pipeline.outputs.get("text")
    stage = next((each for each in stages if output is not None and each.name == output.stage), None)
    if stage is None or stage.inputs or not stage.processor_declaration.tools:
        return None
    return stage if stage.engine_settings.takes_tools else None


def _as_json(tool: Tool) -> dict[str, Any]:
    function = {name: value for name, value in tool.function.model_dump().items() if value is not None}
    return {"type": tool.type, "function": function}


def _check_choice(choice: str | NamedTool, tools: Sequence[Tool]) -> None:
    names = [tool.function.name for tool in tools]
    for number, name in enumerate(names):
        if name in names[:number]:
            raise InvalidRequest(f"a second tool {name}", field=f"tools.{number}.function.name")
    if isinstance(choice, NamedTool) and choice.function.name not in names:
        raise InvalidRequest(f"there is no tool {choice.function.name}", field="tool_choice.function.name")
    if choice in ("none", "auto"):
        return
    # The model is held to the parameters of what it has to call.
    for number, tool in enumerate(tools):
        if choice == "required" or (isinstance(choice, NamedTool) and choice.function.name == tool.function.name):
            try:
                check_keywords(tool.function.parameters or {})
            except ValueError as error:
                raise InvalidRequest(str(error), field=f"tools.{number}.function.parameters") from None
