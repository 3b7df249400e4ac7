"""A YAML file's data, with the line of every field, so that an error can name it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from omni_jobs.errors import ConfigError

FieldPath = tuple[str | int, ...]
"""The keys and list indexes that lead from the document to a field: ("stages", "talker", "inputs")."""


# Parameters of OpenAI that people will look for here.
_NOT_SUPPORTED = dict.fromkeys(
    ("n", "best_of"), "several answers are not supported: a job has one; submit several jobs"
)


class _UniqueKeyLoader(yaml.SafeLoader):
    """Load plain YAML values; refuse a key that is given twice or is not a string."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                raise yaml.constructor.ConstructorError(None, None, f"key {key!r} is not a string", key_node.start_mark)
            if key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"key {key!r} twice", key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)


class YamlSource:
    """One YAML file: its ``data``, and errors that name file, line and field."""

    def __init__(self, path: Path) -> None:
        """Read and parse the file. Raises ConfigError when it cannot be read, is empty or is not valid YAML."""
        self._path = path
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"cannot be read: {error}", file=str(path)) from error
        loader = _UniqueKeyLoader(text)
        try:
            root = loader.get_single_node()
            if root is None:
                raise ConfigError("the file is empty", file=str(path), line=1)
            self._root: yaml.Node = root
            self.data = loader.construct_document(root)
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            line = mark.line + 1 if mark else None
            raise ConfigError(f"not valid YAML: {error.problem}", file=str(path), line=line) from error
        except yaml.YAMLError as error:
            raise ConfigError(f"not valid YAML: {error}", file=str(path)) from error
        finally:
            loader.dispose()

    @contextmanager
    def located(self, at: FieldPath) -> Iterator[None]:
        """Context manager: add the file, and the line and name of the field ``at``, to a ConfigError within.

        Raise pydantic's ValidationError of the value at ``at`` as a ConfigError for its first complaint.
        """
        try:
            yield
        except ConfigError as error:
            raise self.error(at, error.message, type(error)) from error
        except ValidationError as error:
            first = error.errors()[0]
            within = tuple(part for part in first["loc"] if part != "[key]")
            message = first["msg"].removeprefix("Value error, ")
            if first["type"] == "extra_forbidden":
                message = _NOT_SUPPORTED.get(str(within[-1]), "unknown key")
            raise self.error((*at, *within), message) from None

    def error(self, at: FieldPath, message: str, kind: type[ConfigError] = ConfigError) -> ConfigError:
        """Return a ``kind`` that names the file, the field ``at``, and its line or the nearest field's above."""
        field = ".".join(str(part) for part in at)
        return kind(message, file=str(self._path), line=self._line(at), field=field or None)

    def _line(self, at: FieldPath) -> int:
        """Return the line of a field, or of the nearest field above it that the file has."""
        node: yaml.Node = self._root
        line = node.start_mark.line
        for part in at:
            if isinstance(node, yaml.MappingNode):
                match = next(((key, value) for key, value in node.value if key.value == part), None)
                if match is None:
                    break
                line, node = match[0].start_mark.line, match[1]
            elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
                node = node.value[part]
                line = node.start_mark.line
            else:
                break
        return int(line) + 1
