"""What a stage config may name, declared: the components of architectures, and input processors.

components_of("qwen2_5_omni")   the parts of its checkpoints, each with the kind of stage that runs it
processor("thinker2talker")     what it takes, and the class that does it

A declaration is light: it names its class as text, and only a worker imports that. So the API,
``omni-jobs pipelines check`` and the workers judge a stage graph by the same rules. Those of this
package stand in the tables below; another package's are its entry points: docs/models.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any, Literal

from omni_jobs.errors import ConfigError
from omni_jobs.pipelines.parameters import StageKind

__all__ = [
    "CAUSAL_LM",
    "COMPONENTS",
    "ECHO_PRODUCES",
    "PROCESSORS",
    "ComponentDeclaration",
    "Components",
    "Flow",
    "ProcessorDeclaration",
    "components_of",
    "processor",
]

COMPONENTS = "omni_jobs.components"
"""Entry points: architecture → a mapping of ``component`` to its declaration; None: the whole checkpoint."""

PROCESSORS = "omni_jobs.processors"
"""Entry points: ``processor`` → its declaration."""

Flow = Literal["text", "hidden_states", "codes", "waveform", "bytes"]
"""What can pass from one stage to the next."""

ECHO_PRODUCES: frozenset[Flow] = frozenset({"bytes", "text"})
"""What a stage without a model can make."""


@dataclass(frozen=True, slots=True)
class ComponentDeclaration:
    """One part of a checkpoint, as a stage.

    kind      the kind of stage that runs it
    produces  what such a stage can make
    needs     flows that must be among the stage's inputs; empty: the job's request is enough
    dtypes    those it can run in; None: the engine decides
    """

    kind: StageKind
    produces: frozenset[Flow]
    needs: frozenset[Flow] = frozenset()
    dtypes: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class ProcessorDeclaration:
    """An input processor: a job and the payloads of earlier stages → a stage's input.

    implementation  the class, an ``InputProcessor`` of ``workers.stages.stage``, as "module:Class"
    kind            the kind of stage it makes input for
    consumes        the stage has exactly one input of each of these flows
    may_consume     and any number of inputs of these
    """

    implementation: str
    kind: StageKind
    consumes: frozenset[Flow] = frozenset()
    may_consume: frozenset[Flow] = frozenset()


Components = Mapping[str | None, ComponentDeclaration]
"""The parts of one architecture's checkpoints by name; None: the whole checkpoint."""

CAUSAL_LM: Components = {
    None: ComponentDeclaration("ar", produces=frozenset({"text", "hidden_states"})),
}

QWEN2_5_OMNI: Components = {
    "thinker": ComponentDeclaration("ar", produces=frozenset({"text", "hidden_states"})),
    "talker": ComponentDeclaration("ar", produces=frozenset({"codes"}), needs=frozenset({"hidden_states"})),
    "code2wav": ComponentDeclaration(
        "diffusion",
        produces=frozenset({"waveform"}),
        needs=frozenset({"codes"}),
        dtypes=frozenset({"auto", "float32"}),
    ),
}

_COMPONENTS: Mapping[str, Components] = {"causal_lm": CAUSAL_LM, "qwen2_5_omni": QWEN2_5_OMNI}

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
    """The components of an architecture's checkpoints. Raises ConfigError when none are declared."""
    declared = _COMPONENTS.get(architecture) or _declared(COMPONENTS, architecture)
    if declared is None:
        raise ConfigError(
            f"architecture {architecture!r} declares no components: its package needs an entry point in {COMPONENTS}"
        )
    if not isinstance(declared, Mapping) or not all(isinstance(one, ComponentDeclaration) for one in declared.values()):
        raise ConfigError(f"the entry point {architecture!r} of {COMPONENTS} is no mapping of ComponentDeclaration")
    return declared


def processor(name: str) -> ProcessorDeclaration:
    """An input processor's declaration. Raises ConfigError when none has the name."""
    declared = _PROCESSORS.get(name) or _declared(PROCESSORS, name)
    if declared is None:
        known = ", ".join(sorted({*_PROCESSORS, *(entry.name for entry in entry_points(group=PROCESSORS))}))
        raise ConfigError(f"no input processor {name!r} installed; known: {known}")
    if not isinstance(declared, ProcessorDeclaration):
        raise ConfigError(f"the entry point {name!r} of {PROCESSORS} is no ProcessorDeclaration")
    return declared


def _declared(group: str, name: str) -> Any:
    """What another package declares; None where there is nothing of that name. Raises ConfigError."""
    for entry in entry_points(group=group, name=name):
        try:
            return entry.load()
        except Exception as error:  # another package's code runs here
            reason = f"{type(error).__name__}: {error}".removesuffix(": ")
            raise ConfigError(f"the entry point {name!r} of {group} cannot be loaded: {reason}") from error
    return None
