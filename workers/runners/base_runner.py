"""``BaseRunner``: the base of runners: it checks what they are given, and its runs end with them."""

from abc import ABC, abstractmethod
from collections.abc import Collection
from typing import Any, ClassVar, Generic, TypeVar, get_args, get_origin

from omni_jobs.errors import ConfigError, ModelError, OmniJobsError
from omni_jobs.pipelines.engine_settings import EngineSettings
from workers.runners.open_runs import OpenRuns
from workers.runners.runner import ProgressSink
from workers.stages.engine_args import OmniEngineArgs
from workers.stages.types import EnginePrompt, OmniModelRunnerOutput

P = TypeVar("P")
E = TypeVar("E", bound=EngineSettings)


class BaseRunner(ABC, Generic[P, E]):
    """Runs prompts of the type ``P`` by engine settings of the type ``E``. Implements ``TellingRunner``.

    A subclass has ``start``, ``produce``, ``healthy``, and a ``close`` that ends ``_runs``.
    """

    _prompt: ClassVar[Any]  # a class, or a union of classes
    _settings: ClassVar[type[EngineSettings]]

    def __init_subclass__(cls) -> None:
        """Note the types of prompts and settings. Raises TypeError for a class that does not name both."""
        super().__init_subclass__()
        is_open = False  # a base that leaves the types open
        for base in cls.__dict__.get("__orig_bases__", ()):
            origin, types = get_origin(base), get_args(base)
            if isinstance(origin, type) and issubclass(origin, BaseRunner):
                is_open = any(isinstance(each, TypeVar) for each in types)
                if len(types) == 2 and not is_open:
                    cls._prompt, cls._settings = types
        if not is_open and not hasattr(cls, "_settings"):
            raise TypeError(f"{cls.__name__} names no types: {cls.__bases__[0].__name__}[PROMPT, ENGINE_SETTINGS]")

    def __init__(self, args: OmniEngineArgs) -> None:
        """Keep the arguments, and the settings as ``engine``. Raises ConfigError for settings of another runner."""
        if not isinstance(args.engine, self._settings):
            problem = f"settings of the class {self._settings.__name__} are due, not {type(args.engine).__name__}"
            raise ConfigError(problem, field="engine", stage=args.stage)
        self.args = args
        self.engine: E = args.engine  # type: ignore[assignment]
        self._runs = OpenRuns(args.stage, lambda: self.healthy)

    @abstractmethod
    async def produce(self, prompt: P, progress: ProgressSink) -> OmniModelRunnerOutput:
        """Return the output of one prompt; called for many at once. Raises ModelError for what cannot be made.

        It is cancelled when nobody waits for the output any more, and by ``close``.
        """

    async def run(self, prompt: EnginePrompt, progress: ProgressSink) -> OmniModelRunnerOutput:
        """Return what ``produce`` does; its errors name the stage.

        Raises ModelError for a prompt of another type, and EngineDead unless healthy and open.
        """
        stage = self.args.stage
        if not isinstance(prompt, self._prompt):
            due = " or ".join(kind.__name__ for kind in get_args(self._prompt) or (self._prompt,))
            raise ModelError(f"the stage takes {due}, not {type(prompt).__name__}", field="kind", stage=stage)
        try:
            return await self._runs.run(lambda: self.produce(prompt, progress))
        except OmniJobsError as error:
            error.stage = error.stage or stage
            raise

    @property
    @abstractmethod
    def healthy(self) -> bool:
        """True while the engine can take another prompt."""

    @property
    def computing(self) -> Collection[int]:
        """The stage runs that are in the engine."""
        return self._runs.computing
