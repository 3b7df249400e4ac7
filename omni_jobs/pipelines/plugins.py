"""Plug-ins: objects that installed packages name by entry points, ours as well as those of others.

    plugin("omni_jobs.families", "qwen2_5_omni", Family)     the object of an entry point, its type checked
    named_object("module:Class", StageParameters)            a class that such an object names as text
    check_there("module:Class")                              whether such a class is there, without an import

The object of an entry point is light, so that the API may load it. It names everything heavy as text, which only the
process that needs it loads. A stage config and a request name plug-ins alone, never a module.
"""

import ast
import sys
from collections.abc import Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from functools import lru_cache
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from pkgutil import resolve_name
from threading import Thread
from typing import Any, TypeVar

from omni_jobs.errors import PluginBroken

T = TypeVar("T")

IMPORT_LIMIT_S = 120.0
"""How long the first import of a module may take; vLLM's takes some ten seconds on a busy machine."""

_HANGING: dict[str, str] = {}
"""Why each module counts as one whose import hangs, for as long as this process lives."""


def plugin(group: str, name: str, kind: type[T]) -> T:
    """Return the object of the entry point ``name`` in ``group``, which is of the type ``kind``.

    Raises PluginBroken if there is none, naming the known ones, and if it cannot be loaded, is of another type, or
    stands in two packages.
    """
    found = _values(group).get(name)
    if found is None:
        known = ", ".join(names(group)) or "none"
        raise PluginBroken(f"no such plug-in {name!r} of {group} is installed; known: {known}")
    if len(found) > 1:
        raise PluginBroken(f"the entry point {name!r} of {group} stands in several packages: {' and '.join(found)}")
    loaded = _load(f"the entry point {name!r} of {group}", found[0])
    if not isinstance(loaded, kind):
        raise PluginBroken(f"the entry point {name!r} of {group} is no {kind.__name__}")
    return loaded


def names(group: str) -> tuple[str, ...]:
    """Return the names of a group's entry points, sorted; not whether they can be loaded."""
    return tuple(sorted(_values(group)))


def named_object(path: str, kind: type[T]) -> T:
    """Return the object at ``path``, "module:name". Raises PluginBroken if it cannot be loaded or is no ``kind``."""
    loaded = _load(repr(path), path)
    if not isinstance(loaded, kind):
        raise PluginBroken(f"{path!r} is no {kind.__name__}")
    return loaded


def named_class(path: str, base: type[T]) -> type[T]:
    """Return the class at ``path``. Raises PluginBroken if it cannot be loaded or is no subclass of ``base``."""
    loaded = named_object(path, type)
    if not issubclass(loaded, base):
        raise PluginBroken(f"{path!r} is no {base.__name__}")
    return loaded


@lru_cache(maxsize=256)
def check_there(path: str) -> None:
    """Check that the module of ``path``, "module:name", is installed, is Python, and may have the name.

    For objects that only a worker imports, because they are heavy. Raises PluginBroken.
    """
    module, _, name = path.partition(":")
    spec = _spec_of(module)
    if spec is None:
        raise PluginBroken(f"{path!r} cannot be loaded: there is no module {module!r}")
    if not spec.has_location or not str(spec.origin).endswith(".py"):
        return  # a compiled module tells nothing before it is imported
    try:
        tree = ast.parse(Path(str(spec.origin)).read_bytes())
    except (OSError, SyntaxError, ValueError) as error:
        raise PluginBroken(f"{path!r} cannot be loaded: {type(error).__name__}: {error}") from error
    bound = _bound_names(tree)
    if name and name.partition(".")[0] not in bound and not {"*", "__getattr__"} & bound:
        raise PluginBroken(f"{path!r} cannot be loaded: module {module!r} has no {name!r}")


def _spec_of(module: str) -> ModuleSpec | None:
    """Return the spec of a module; None if there is none. Imports none of the packages around it."""
    top, *inner = module.split(".")
    try:
        spec = find_spec(top)
        for end in range(2, len(inner) + 2):
            if spec is None or spec.submodule_search_locations is None:
                return None
            spec = PathFinder.find_spec(".".join(module.split(".")[:end]), spec.submodule_search_locations)
    except (ImportError, ValueError):  # no name of a module
        return None
    return spec


def _bound_names(tree: ast.Module) -> set[str]:
    """Return every name that is bound anywhere in a module, "*" for an import of all."""
    bound: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            bound.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            bound.add(node.id)
        elif isinstance(node, ast.alias):
            bound.add(node.asname or node.name.partition(".")[0])
    return bound


def _values(group: str) -> Mapping[str, list[str]]:
    """Return the paths of a group's entry points by name: usually one for each."""
    return _values_on(group, tuple(sys.path))


@lru_cache(maxsize=64)  # to read the metadata of all packages takes milliseconds
def _values_on(group: str, path: tuple[str, ...]) -> Mapping[str, list[str]]:
    del path  # the packages are found there
    found: dict[str, list[str]] = {}
    for entry in entry_points(group=group):
        paths = found.setdefault(entry.name, [])
        if entry.value not in paths:  # the same package may be found twice on the path
            paths.append(entry.value)
    return found


def _load(subject: str, path: str) -> Any:
    module = path.partition(":")[0]
    try:
        return resolve_name(path) if _is_imported(module) else _first_import(module, path)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # another package's code runs here, and SystemExit would end this process
        reason = f"{type(error).__name__}: {error}".removesuffix(": ")
        raise PluginBroken(f"{subject} cannot be loaded: {reason}") from error


def _is_imported(module: str) -> bool:
    """Return whether a module is imported already, or a package around it is just being imported, maybe by the caller.

    Another thread would wait for that package, and the caller for the thread.
    """
    parents = [module.rpartition(".")[0]]
    while parents[-1]:
        parents.append(parents[-1].rpartition(".")[0])
    if any(_is_under_way(parent) for parent in parents[:-1]):
        return True
    return module in sys.modules and not _is_under_way(module)


def _is_under_way(module: str) -> bool:
    return bool(getattr(getattr(sys.modules.get(module), "__spec__", None), "_initializing", False))


def _first_import(module: str, path: str) -> Any:
    """Import a module on a thread of its own, because one whose import hangs must stop no other pipeline.

    Raises TimeoutError for such a one, also later, and what the import raises.
    """
    if module in _HANGING:
        raise TimeoutError(_HANGING[module])
    found: Future[Any] = Future()
    Thread(target=_import, args=(path, found), name=f"import-{module}", daemon=True).start()
    try:
        return found.result(IMPORT_LIMIT_S)
    except FutureTimeout:
        if found.done():
            raise
        _HANGING[module] = f"its import has not ended within {IMPORT_LIMIT_S:g} s"
        raise TimeoutError(_HANGING[module]) from None


def _import(path: str, found: "Future[Any]") -> None:
    try:
        found.set_result(resolve_name(path))
    except BaseException as error:  # noqa: BLE001 — whoever waits raises it
        found.set_exception(error)
