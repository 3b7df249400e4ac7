"""Declarations: what families, runners and their parts are called, and which stages they fit.

    family("qwen2_5_omni")     the parts of its checkpoints, each with the runner of the stages that run it
    runner("diffusion")        the class that runs such stages, and the types of their parameters and engine settings

A declaration is a light object that an entry point names. It names every class as text, and only a worker imports the
heavy ones. So the API, ``omni-jobs pipelines check`` and the workers check a stage graph by the same rules, without
torch. docs/models.md tells how to declare one.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from omni_jobs.pipelines.flows import Dialect
from omni_jobs.pipelines.plugins import plugin

FAMILIES = "omni_jobs.families"
"""Entry point group: a model's family → its ``Family``."""

RUNNERS = "omni_jobs.runners"
"""Entry point group: a kind of stage → the ``RunnerDeclaration`` of the runner of such stages."""


@dataclass(frozen=True, slots=True)
class ProcessorDeclaration:
    """An input processor, which turns a job and the payloads of earlier stages into a stage's prompt.

    implementation  the class, an ``InputProcessor`` of ``workers.stages.stage``, as "module:Class"
    runner          the kind of stage it makes prompts for
    consumes        the flows of which the stage has exactly one input each
    may_consume     the flows of which the stage has any number of inputs
    parameters      the ``StageParameters`` that it reads, as "module:Class": the stage's are of this class; None: those
                    of the runner. Where the runner's stages run no component, its own processors choose so what a job
                    may set
    produces        the flows that its prompts are made into, where the runner's stages run no component; empty: any of
                    the runner's
    blocking        whether it may take so long that it runs on a thread; None: as the runner says
    tools           whether its prompts tell the model of the tools that a job offers
    check           the function that refuses a request before its job is taken, as "module:name": it gets the
                    ``StageConfig`` and the admitted request, and raises InvalidRequest; None: every request will do
    """

    implementation: str
    runner: str
    consumes: frozenset[str] = frozenset()
    may_consume: frozenset[str] = frozenset()
    parameters: str | None = None
    produces: frozenset[str] = frozenset()
    blocking: bool | None = None
    check: str | None = None
    tools: bool = False


@dataclass(frozen=True, slots=True)
class CardMemory:
    """What a component takes of a card's memory, as ``omni-jobs pipelines fit`` reckons it from a checkpoint's files.

    weights     what it loads: beginnings of the weights' names, behind the folder that holds their files, such as
                "thinker." or "vae/"
    without     what it leaves out of these, in the same form
    auto_bytes  of a weight on a card where the engine's dtype is auto
    context     the file and the keys in it that lead to the config of the transformer whose keys and values it keeps,
                such as "config.json", "text_config"; empty: it keeps none
    work_bytes  its activations and buffers in the largest step of the family's stage config: an estimate
    compact     the beginnings of the names of the weights that a diffusion engine's ``weights`` and ``offload_blocks``
                are about; of several transformers the blocks of one are on the card at a time
    """

    weights: tuple[str, ...] = ("",)
    without: tuple[str, ...] = ()
    auto_bytes: int = 2
    context: tuple[str, ...] = ()
    work_bytes: int = 2 * 10**9
    compact: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ComponentDeclaration:
    """One component of a family's checkpoints, and the stages that can run it.

    runner          the kind of stage that runs it
    produces        the flows that such a stage can produce
    needs           the flows that must be among the stage's inputs; empty if the job's request is enough
    dtypes          the dtypes it can run in; None leaves the choice to the engine
    parameters      the ``StageParameters`` of such a stage, as "module:Class"; None: those of the runner
    implementation  the object that the runner loads in its process, as "module:name": an ``ArComponent`` for ``ar``,
                    the function that loads a ``DiffusionModel`` for ``diffusion``; None: the runner needs none
    resumable       whether another attempt can go on from a snapshot of an earlier one: the ``DiffusionModel`` is a
                    ``ResumableModel``
    dialects        by flow, what its numbers mean; of a flow that such a stage takes, they must mean the same to the
                    component that makes it. A flow that is not named may mean anything
    memory          what it takes of a card's memory; None: its stages run on no card, or nobody reckoned it
    takes           the engine settings that only some models take and this one does, such as "lora_modules"
    """

    runner: str
    produces: frozenset[str]
    needs: frozenset[str] = frozenset()
    dtypes: frozenset[str] | None = None
    parameters: str | None = None
    implementation: str | None = None
    resumable: bool = False
    dialects: Mapping[str, Dialect] = field(default_factory=dict)
    memory: CardMemory | None = None
    takes: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Family:
    """The models that share a design, such as Qwen2.5-Omni's or causal language models.

    components        by the name that a stage config uses; the name None is the whole checkpoint
    prompts           the ``PromptRenderer`` that checks and renders the requests of its first stage, as "module:Class"
    processors        the family's own input processors, by name
    vllm_models       vLLM model classes of the family's own: the name under which vLLM gets one → "module:Class"
    checkpoint        a directory of an installed package that holds a checkpoint, as "package:directory"; None: a
                      checkpoint must be given
    checkpoint_files  files that every checkpoint directory has
    tiny_checkpoint   the module that builds a tiny checkpoint: ``python -m MODULE DIRECTORY``
    diffusers_classes the ``_class_name`` in model_index.json of its checkpoints that have the layout of Diffusers
    """

    components: Mapping[str | None, ComponentDeclaration]
    prompts: str | None = None
    processors: Mapping[str, ProcessorDeclaration] = field(default_factory=dict)
    vllm_models: Mapping[str, str] = field(default_factory=dict)
    checkpoint: str | None = None
    checkpoint_files: tuple[str, ...] = ("config.json",)
    tiny_checkpoint: str | None = None
    diffusers_classes: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class RunnerDeclaration:
    """A runner, which loads a stage's model and runs the prompts of stages of one kind.

    implementation   the class, a ``Runner`` of ``workers.runners.runner``, as "module:Class"; it takes an
                     ``OmniEngineArgs``
    engine           the ``EngineSettings`` of such stages, as "module:Class"
    engine_check     the module that checks what ``engine`` leaves to the engine's own types: ``python -m MODULE`` reads
                     a JSON list of ``engine`` mappings and writes for each a list of [field path, message]; None: there
                     is nothing more to check
    parameters       the ``StageParameters`` of such stages, as "module:Class"; None: each component has its own
    processors       the input processors that stages of all families may use, by name
    produces         the flows that a stage without a component can produce; empty: a stage needs a component
    packages         the import names of the packages that a worker needs → how to install each
    torch            whether it runs on a device of torch, which a worker then resolves
    blocking_prompts whether its processors take so long that they run on a thread, unless one says otherwise
    token_ids        whether its outputs have ``token_ids``, which a job may ask for
    """

    implementation: str
    engine: str = "omni_jobs.pipelines.engine_settings:EngineSettings"
    engine_check: str | None = None
    parameters: str | None = None
    processors: Mapping[str, ProcessorDeclaration] = field(default_factory=dict)
    produces: frozenset[str] = frozenset()
    packages: Mapping[str, str] = field(default_factory=dict)
    torch: bool = False
    blocking_prompts: bool = True
    token_ids: bool = False


def family(name: str) -> Family:
    """Return a family. Raises ConfigError if none of the name is installed, and PluginBroken."""
    return plugin(FAMILIES, name, Family)


def runner(name: str) -> RunnerDeclaration:
    """Return the declaration of a kind's runner. Raises ConfigError if none is installed, and PluginBroken."""
    return plugin(RUNNERS, name, RunnerDeclaration)
