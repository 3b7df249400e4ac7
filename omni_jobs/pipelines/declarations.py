"""Declarations of the components and input processors that a stage config may name.

    components_of("qwen2_5_omni")   the parts of its checkpoints, each with the kind of stage that runs it
    processor("thinker2talker")     its inputs, and the class that implements it

A declaration names its class as text, and only a worker imports the class. So the API, ``omni-jobs pipelines check``
and the workers check a stage graph by the same rules, without torch. The tables below declare this package's own;
another package declares its own as entry points: docs/models.md.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any, Literal

from omni_jobs.errors import ConfigError
from omni_jobs.pipelines.parameters import StageKind

COMPONENTS = "omni_jobs.components"
"""Entry point group: architecture → its ``Components``."""

PROCESSORS = "omni_jobs.processors"
"""Entry point group: input processor → its ``ProcessorDeclaration``."""

PROMPTS = "omni_jobs.prompts"
"""Entry point group: architecture → its ``PromptRenderer``."""

Flow = Literal["text", "hidden_states", "codes", "waveform", "bytes"]
"""The kinds of data that pass from one stage to the next."""

ECHO_PRODUCES: frozenset[Flow] = frozenset({"bytes", "text"})
"""The flows that a stage without a model can produce."""


@dataclass(frozen=True, slots=True)
class ComponentDeclaration:
    """One component of a checkpoint, and the stages that can run it.

    kind      the kind of stage that runs it
    produces  the flows that such a stage can produce
    needs     the flows that must be among the stage's inputs; empty if the job's request is enough
    dtypes    the dtypes it can run in; None leaves the choice to the engine
    """

    kind: StageKind
    produces: frozenset[Flow]
    needs: frozenset[Flow] = frozenset()
    dtypes: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class ProcessorDeclaration:
    """An input processor, which turns a job and the payloads of earlier stages into a stage's prompt.

    implementation  the class, an ``InputProcessor`` of ``workers.stages.stage``, as "module:Class"
    kind            the kind of stage it makes prompts for
    consumes        the flows of which the stage has exactly one input each
    may_consume     the flows of which the stage has any number of inputs
    """

    implementation: str
    kind: StageKind
    consumes: frozenset[Flow] = frozenset()
    may_consume: frozenset[Flow] = frozenset()


Components = Mapping[str | None, ComponentDeclaration]
"""The components of one architecture's checkpoints by name; the name None is the whole checkpoint."""

_COMPONENTS: Mapping[str, Components] = {
    "causal_lm": {None: ComponentDeclaration("ar", produces=frozenset({"text", "hidden_states"}))},
    "qwen2_5_omni": {
        "thinker": ComponentDeclaration("ar", produces=frozenset({"text", "hidden_states"})),
        "talker": ComponentDeclaration("ar", produces=frozenset({"codes"}), needs=frozenset({"hidden_states"})),
        "code2wav": ComponentDeclaration(
            "diffusion",
            produces=frozenset({"waveform"}),
            needs=frozenset({"codes"}),
            dtypes=frozenset({"auto", "float32"}),
        ),
    },
}

_PROCESSORS: Mapping[str, ProcessorDeclaration] = {
    "chat": ProcessorDeclaration("workers.stages.processors.chat:ChatProcessor", "ar"),
    "thinker2talker": ProcessorDeclaration(
        "workers.models.qwen2_5_omni.thinker2talker:Thinker2TalkerProcessor",
        "ar",
        consumes=frozenset({"hidden_states"}),
    ),
    "talker2code2wav": ProcessorDeclaration(
        "workers.models.qwen2_5_omni.talker2code2wav:Talker2Code2WavProcessor",
        "diffusion",
        consumes=frozenset({"codes"}),
    ),
    "echo": ProcessorDeclaration(
        "workers.stages.processors.echo:EchoProcessor", "echo", may_consume=frozenset({"bytes"})
    ),
}


def components_of(architecture: str) -> Components:
    """Return the components of an architecture's checkpoints by name; None names the whole checkpoint.

    Raises ConfigError where none are declared, or their entry point cannot be loaded or is something else.
    """
    declared = _COMPONENTS.get(architecture) or _declared(COMPONENTS, architecture)
    if declared is None:
        raise ConfigError(
            f"architecture {architecture!r} declares no components: its package needs an entry point in {COMPONENTS}"
        )
    if not isinstance(declared, Mapping) or not all(isinstance(one, ComponentDeclaration) for one in declared.values()):
        raise ConfigError(f"the entry point {architecture!r} of {COMPONENTS} is no mapping of ComponentDeclaration")
    return declared


def processor(name: str) -> ProcessorDeclaration:
    """Return the declaration of an input processor. Raises ConfigError when none, or a broken one, has the name."""
    declared = _PROCESSORS.get(name) or _declared(PROCESSORS, name)
    if declared is None:
        known = ", ".join(sorted({*_PROCESSORS, *(entry.name for entry in entry_points(group=PROCESSORS))}))
        raise ConfigError(f"no input processor {name!r} installed; known: {known}")
    if not isinstance(declared, ProcessorDeclaration):
        raise ConfigError(f"the entry point {name!r} of {PROCESSORS} is no ProcessorDeclaration")
    return declared


def _declared(group: str, name: str) -> Any:
    """Return the object of another package's entry point, None if there is none. Raises ConfigError if it fails."""
    for entry in entry_points(group=group, name=name):
        try:
            return entry.load()
        except Exception as error:  # another package's code runs here
            reason = f"{type(error).__name__}: {error}".removesuffix(": ")
            raise ConfigError(f"the entry point {name!r} of {group} cannot be loaded: {reason}") from error
    return None
