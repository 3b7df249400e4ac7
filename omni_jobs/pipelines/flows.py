"""Flows: the kinds of data that pass from one stage to the next, each a contract about a payload.

    flow("hidden_states")            the contract of a name: ours, or of an entry point of ``omni_jobs.flows``
    flow("codes").problem(payload)   the first thing in which a payload breaks it

A stage's payload is checked when it is written and when it is read. It may hold more than its flow asks for.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from omni_jobs.errors import PluginBroken
from omni_jobs.pipelines.plugins import names, plugin

if TYPE_CHECKING:
    from omni_jobs.payloads import Payload, Tensor

FLOWS = "omni_jobs.flows"
"""Entry point group: a flow of another package → its ``Flow``."""

FLOATS = frozenset({"F16", "BF16", "F32", "F64"})

Sizes = Mapping[str, int]
"""The sizes of a payload's named dimensions."""

Shape = tuple[int | str, ...]
"""The dimensions of a tensor: a number, or a name, which stands for the same size wherever it stands."""


@dataclass(frozen=True, slots=True)
class TensorField:
    """A tensor of a flow.

    dtypes    those it may have
    shapes    those it may have; empty: any
    optional  whether it may be missing
    finite    whether each element must be a number, so that a model that makes another is told from one that reads it
    """

    dtypes: frozenset[str]
    shapes: tuple[Shape, ...] = ()
    optional: bool = False
    finite: bool = False


@dataclass(frozen=True, slots=True)
class ValueField:
    """A value of a flow.

    type      of its JSON; float takes an integer, too
    at_least  the least number it may be
    size      the dimension whose size it says
    optional  whether it may be missing
    """

    type: type[str] | type[int] | type[float] | type[bool] | type[list[Any]] | type[dict[str, Any]]
    at_least: float | None = None
    size: str | None = None
    optional: bool = False


@dataclass(frozen=True, slots=True)
class Dialect:
    """What the numbers of a flow mean, where parts of the same models alone understand them: the latents of one VAE.

    sizes  those that named dimensions of the flow have; two of one name are the same whether or not they say them
    """

    name: str
    sizes: Sizes = field(default_factory=dict, compare=False)


@dataclass(frozen=True, slots=True)
class Flow:
    """A kind of data that passes between stages: a contract about a payload.

    tensors        by name
    values         by name
    rules          what the size of a dimension must be, computed from those of others
    includes       flows that a payload of this one holds as well, if a later stage takes one of them
    prompt_embeds  whether the payload carries finite prompt embeddings, whose width is the dimension ``hidden_size``
    from_tokens    whether it is made of the generated tokens alone, so that no hidden states are captured for it
    content        what a person would call it, for messages
    """

    name: str
    tensors: Mapping[str, TensorField] = field(default_factory=dict)
    values: Mapping[str, ValueField] = field(default_factory=dict)
    rules: Mapping[str, Callable[[Sizes], int]] = field(default_factory=dict)
    includes: frozenset[str] = frozenset()
    prompt_embeds: bool = False
    from_tokens: bool = False
    content: str = "data"

    def spoken(self, dialect: Dialect | None) -> "Flow":
        """Return this flow with the sizes of a dialect; None has none."""
        if dialect is None:
            return self
        sizes = {name: lambda _, size=size: size for name, size in dialect.sizes.items()}
        return replace(self, rules={**self.rules, **sizes})

    def problem(self, payload: "Payload") -> "Problem | None":
        """Return the first thing in which a payload breaks this contract; None if it keeps it."""
        sizes: dict[str, int] = {}
        if self.prompt_embeds:
            if payload.prompt_embeds is None:
                return Problem("missing", "prompt_embeds")
            if not payload.prompt_embeds.embeds.is_finite():
                return Problem(_NOT_FINITE, "prompt_embeds")
            sizes["hidden_size"] = payload.prompt_embeds.embeds.shape[1]
        information = payload.additional_information
        tensors = {} if information is None else information.tensors
        values = {} if information is None else information.values
        for name, value in self.values.items():
            if problem := _value_problem(values, name, value, sizes):
                return problem
        for name, tensor in self.tensors.items():
            if problem := _tensor_problem(tensors, name, tensor, sizes):
                return problem
        return self._rule_problem(sizes)

    def _rule_problem(self, sizes: Sizes) -> "Problem | None":
        for name, rule in self.rules.items():
            if name in sizes and (due := rule(sizes)) != sizes[name]:
                known = ", ".join(f"{other} {size}" for other, size in sizes.items() if other != name)
                return Problem(
                    f"{sizes[name]} {name} where {due} are due ({known})", f"tensors.{self._tensor_of(name)}"
                )
        return None

    def _tensor_of(self, size: str) -> str:
        shaped = (name for name, tensor in self.tensors.items() if any(size in shape for shape in tensor.shapes))
        return f"{next(shaped, size)}.shape"


_NOT_FINITE = "an element is not finite"


class Problem(NamedTuple):
    """What is wrong with a payload, and its field: ``tensors.codes.dtype``."""

    message: str
    field: str


def _value_problem(values: Mapping[str, Any], name: str, due: ValueField, sizes: dict[str, int]) -> Problem | None:
    at = f"values.{name}"
    if name not in values:
        return None if due.optional else Problem("missing", at)
    value = values[name]
    is_number = due.type is float and type(value) is int
    if type(value) is not due.type and not is_number:
        return Problem(f"{type(value).__name__}, not {due.type.__name__}", at)
    if due.at_least is not None and value < due.at_least:
        return Problem(f"{value}, which is less than {due.at_least:g}", at)
    return _size_problem(sizes, due.size, value, at) if due.size is not None else None


def _tensor_problem(tensors: Mapping[str, Any], name: str, due: TensorField, sizes: dict[str, int]) -> Problem | None:
    at = f"tensors.{name}"
    tensor: Tensor | None = tensors.get(name)
    if tensor is None:
        return None if due.optional else Problem("missing", at)
    if not hasattr(tensor, "dtype"):
        return Problem("not one tensor", at)
    if tensor.dtype not in due.dtypes:
        return Problem(f"{tensor.dtype}, not {' or '.join(sorted(due.dtypes))}", f"{at}.dtype")
    problem = _shapes_problem(tensor, due, sizes, at) if due.shapes else None
    if problem is None and due.finite and not tensor.is_finite():
        return Problem(_NOT_FINITE, at)
    return problem


def _shapes_problem(tensor: "Tensor", due: TensorField, sizes: dict[str, int], at: str) -> Problem | None:
    found = tensor.shape
    for shape in due.shapes:
        if len(shape) == len(found):
            return _shape_problem(shape, found, sizes, f"{at}.shape")
    ranks = " or ".join(str(len(shape)) for shape in due.shapes)
    return Problem(f"rank {len(found)}, not {ranks}", f"{at}.shape")


def _shape_problem(shape: Shape, found: Sequence[int], sizes: dict[str, int], at: str) -> Problem | None:
    for due, size in zip(shape, found, strict=True):
        if isinstance(due, str):
            if problem := _size_problem(sizes, due, size, at):
                return problem
        elif due != size:
            return Problem(f"{list(found)} where {list(shape)} is due", at)
    return None


def _size_problem(sizes: dict[str, int], name: str, size: int, at: str) -> Problem | None:
    if sizes.setdefault(name, size) != size:
        return Problem(f"{size} {name}, and {sizes[name]} elsewhere", at)
    return None


# This package's own.


def _rows(sizes: Sizes) -> int:
    return sizes["prompt_tokens"] + sizes["tokens"] - 1  # the last token is never an input


_INTEGERS = frozenset({"I64"})
_VOICE = ValueField(str, optional=True)

_OURS = (
    Flow("bytes", {"bytes": TensorField(frozenset({"U8"}), (("bytes",),))}),
    Flow("text", {"text": TensorField(frozenset({"U8"}), (("bytes",),))}, from_tokens=True, content="text"),
    Flow(
        "token_ids",
        {"token_ids": TensorField(_INTEGERS, (("tokens",),))},
        from_tokens=True,
        content="text",
    ),
    Flow(
        "embeds",
        {
            "negative_prompt_embeds": TensorField(
                FLOATS, (("negative_tokens", "hidden_size"),), optional=True, finite=True
            )
        },
        {"prompt_start": ValueField(int, optional=True, at_least=0)},
        prompt_embeds=True,
        content="embeddings",
    ),
    Flow(
        "hidden_states",
        {
            "hidden_states": TensorField(FLOATS, (("rows", "hidden_size"),), finite=True),
            "token_ids": TensorField(_INTEGERS, (("tokens",),)),
            "mrope_positions": TensorField(_INTEGERS, ((3, "prompt_tokens"),), optional=True),
        },
        {
            "prompt_tokens": ValueField(int, at_least=1, size="prompt_tokens"),
            "mrope_delta": ValueField(int, optional=True),
            "voice": _VOICE,
        },
        rules={"rows": _rows},
        includes=frozenset({"text"}),
        content="text",
    ),
    Flow(
        "codes",
        {"codes": TensorField(_INTEGERS, (("codes",),))},
        {"voice": _VOICE},
        from_tokens=True,
        content="speech",
    ),
    Flow(
        "code_frames",
        {"frames": TensorField(_INTEGERS, (("frames", "codebooks"),))},
        {"voice": _VOICE},
        content="speech",
    ),
    Flow(
        "waveform",
        {"waveform": TensorField(frozenset({"F32"}), (("samples",),))},
        {"sampling_rate": ValueField(int, at_least=1)},
        content="speech",
    ),
    Flow(
        "latents",
        {
            "latents": TensorField(
                FLOATS, (("channels", "height", "width"), ("channels", "frames", "height", "width")), finite=True
            )
        },
        content="latents",
    ),
    Flow(
        "pixels",
        {
            "pixels": TensorField(frozenset({"U8"}), (("height", "width", 3), ("frames", "height", "width", 3))),
            "opacity": TensorField(frozenset({"U8"}), (("height", "width"),), optional=True),
        },
        {"frame_rate": ValueField(float, at_least=0, optional=True)},
        content="pictures",
    ),
)
_BY_NAME: Mapping[str, Flow] = {each.name: each for each in _OURS}


def flow(name: str) -> Flow:
    """Return the flow of this name. Raises PluginBroken, naming the known ones if there is none."""
    ours = _BY_NAME.get(name)
    if ours is not None:
        return ours
    if name not in names(FLOWS):
        raise PluginBroken(f"no such flow {name!r}; known: {', '.join(sorted({*_BY_NAME, *names(FLOWS)}))}")
    return plugin(FLOWS, name, Flow)
