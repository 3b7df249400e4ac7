"""Plug-ins: objects that installed packages name by entry points, ours as well as those of others.

    plugin("omni_jobs.families", "qwen2_5_omni", Family)     the object of an entry point, its type checked
    named_object("module:Class", StageParameters)            a class that such an object names as text

The object of an entry point is light, so that the API may load it. It names everything heavy as text, which only the
process that needs it loads. A stage config and a request name plug-ins alone, never a module.
"""

import sys
from collections.abc import Mapping
from functools import lru_cache
from importlib.metadata import entry_points
from pkgutil import resolve_name
from typing import Any, TypeVar

from omni_jobs.errors import ConfigError, PluginBroken

T = TypeVar("T")


def plugin(group: str, name: str, kind: type[T]) -> T:
    """Return the object of the entry point ``name`` in ``group``, which is of the type ``kind``.

    Raises ConfigError naming the known ones if there is none, and PluginBroken if it cannot be loaded, is of another
    type, or stands in two packages.
    """
    found = _values(group).get(name)
    if found is None:
        known = ", ".join(names(group)) or "none"
        raise ConfigError(f"no such plug-in {name!r} of {group} is installed; known: {known}")
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
    try:
        return resolve_name(path)
    except Exception as error:  # another package's code runs here
        reason = f"{type(error).__name__}: {error}".removesuffix(": ")
        raise PluginBroken(f"{subject} cannot be loaded: {reason}") from error
