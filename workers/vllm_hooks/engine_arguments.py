"""vLLM's engine arguments by vLLM's own types: their check before an engine starts, and for ``pipelines check``."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from enum import Enum
from functools import cache
from typing import Any, get_args, get_type_hints

import vllm
from pydantic import ConfigDict, TypeAdapter, ValidationError
from vllm.config.quantization import QuantizationConfigArgs
from vllm.engine.arg_utils import AsyncEngineArgs

from omni_jobs.errors import ConfigError
from omni_jobs.pipelines.yaml_source import FieldPath, gathered

_ARBITRARY = ConfigDict(arbitrary_types_allowed=True)  # torch.dtype is none of pydantic's


_Problem = tuple[FieldPath, str]  # where, why


@cache
def _annotations() -> dict[str, Any]:
    """Return the type of each engine argument, of which one is a name that vLLM imports for type checkers only."""
    return get_type_hints(AsyncEngineArgs, localns={"QuantizationConfigArgs": QuantizationConfigArgs})


@cache
def _adapter(name: str) -> TypeAdapter[Any]:
    annotation = _annotations()[name]
    # A type that has a configuration of its own, a vLLM config, refuses another.
    has_own = dataclasses.is_dataclass(annotation)
    return TypeAdapter(annotation) if has_own else TypeAdapter(annotation, config=_ARBITRARY)


def check_engine_arguments(args: Mapping[str, Any]) -> dict[str, Any]:
    """Return vLLM's engine arguments with each value as its type has it: a name of an enumeration as the member.

    ``Engine.start`` calls it in a worker and gives the result to ``AsyncEngineArgs``. Raises ConfigError naming
    ``engine.<name>`` for an unknown argument and for a value that is not of its type; its ``more`` has the other
    mistakes.
    """
    checked = {name: _checked(name, value) for name, value in args.items()}
    problems = [problem for _, found in checked.values() for problem in found]
    if problems:
        raise gathered([ConfigError(why, field=".".join(map(str, ("engine", *at)))) for at, why in problems])
    return {name: value for name, (value, _) in checked.items()}


def wrong_arguments(engine: Mapping[str, Any], *, own: frozenset[str]) -> Iterator[_Problem]:
    """Yield (where, why) for each of vLLM's arguments in a stage's ``engine`` that vLLM does not know or take.

    ``own``: the keys that are no arguments of vLLM. What stands under ``cpu`` and ``cuda`` is checked, too. A null is
    none of vLLM's values; it leaves the choice to vLLM.
    """
    for name, value in engine.items():
        if name in ("cpu", "cuda"):
            if isinstance(value, Mapping):
                yield from (((name, *at), why) for at, why in wrong_arguments(value, own=own))
        elif name not in own and value is not None:
            yield from _checked(name, value)[1]


def _checked(name: str, value: Any) -> tuple[Any, list[_Problem]]:
    """Return an argument's value as vLLM's type makes it, and what vLLM refuses about it."""
    if name not in _annotations():
        nearest = " or ".join(get_close_matches(name, _annotations(), n=3, cutoff=0.7))
        hint = f"; did you mean {nearest}?" if nearest else ""
        return None, [((name,), f"vLLM {vllm.__version__} has no such argument{hint}")]
    try:
        return _adapter(name).validate_python(_member(_annotations()[name], value)), []
    except (ValidationError, KeyError, TypeError) as error:
        said = f"vLLM {vllm.__version__} refuses the value: "
        return None, [((name, *at), said + why) for at, why in _reasons(error, value)]


def _reasons(error: ValidationError | KeyError | TypeError, value: Any) -> Iterator[_Problem]:
    """Yield (where in ``value``, why) for all that vLLM refuses.

    Some of its validators raise KeyError for a name that an enumeration lacks.
    """
    if isinstance(error, KeyError):
        yield (), f"there is no {error}"
    elif isinstance(error, TypeError):
        yield (), str(error)
    else:
        places: set[FieldPath] = set()
        for complaint in error.errors():
            at = _within(complaint["loc"], value)
            if at not in places:  # a union complains once for each of its members
                places.add(at)
                yield at, complaint["msg"]


def _within(loc: FieldPath, value: Any) -> FieldPath:
    """Return that part of pydantic's place which is in ``value``; the rest names members of unions."""
    for n, part in enumerate(loc):
        if not (isinstance(value, Mapping) and part in value):
            return loc[:n]
        value = value[part]
    return loc


def _member(annotation: Any, value: Any) -> Any:
    """Return the member of an enumeration that a string names, in any case, as vLLM's command line takes it."""
    if isinstance(value, str):
        for each in (annotation, *get_args(annotation)):
            if isinstance(each, type) and issubclass(each, Enum) and value.upper() in each.__members__:
                return each[value.upper()]
    return value
