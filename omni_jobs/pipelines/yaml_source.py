"""A YAML file's data, with the line of every field, so that an error can name it."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import yaml
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from omni_jobs.errors import ConfigError

FieldPath = tuple[str | int, ...]
"""The keys and list indexes that lead from the document to a field: ("stages", "talker", "inputs")."""


# Parameters of OpenAI that people will look for here.
_NOT_SUPPORTED = dict.fromkeys(
    ("n", "best_of"), "several answers are not supported: a job has one; submit several jobs"
)


class _UniqueKeyLoader(yaml.SafeLoader):
    """Load plain YAML values; note in ``wrong`` each key that is given twice or is not a string."""

    # A library that comes with vLLM has every SafeLoader of the process read dates as text.
    yaml_constructors: ClassVar[dict[str | None, Any]] = yaml.SafeLoader.yaml_constructors | {
        "tag:yaml.org,2002:timestamp": yaml.SafeLoader.construct_yaml_timestamp
    }

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self.wrong: list[tuple[str, int]] = []  # what is wrong with a key, and its line

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """Construct a node's value. Raises ConstructorError also for what looks like a date or a number and is none."""
        try:
            return super().construct_object(node, deep)
        except (ValueError, OverflowError) as error:
            raise yaml.constructor.ConstructorError(None, None, str(error), node.start_mark) from error

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            line = key_node.start_mark.line + 1
            if not isinstance(key, str):
                self.wrong.append((f"key {key!r} is not a string", line))
            elif key in seen:
                self.wrong.append((f"key {key!r} twice", line))
            else:
                seen.add(key)
        return super().construct_mapping(node, deep)


def place_of(complaint: ErrorDetails) -> FieldPath:
    """Return the place of pydantic's complaint within the value that was validated."""
    return tuple(part for part in complaint["loc"] if part != "[key]")


@contextmanager
def collected(found: list[ConfigError]) -> Iterator[None]:
    """Context manager: append a ConfigError within to ``found``, and the others that were found with it."""
    try:
        yield
    except ConfigError as error:
        found += [error, *error.more]


def gathered(found: Iterable[ConfigError]) -> ConfigError:
    """Return the first of these mistakes, with the rest as its ``more``: one for each field, and none twice."""
    by_field: dict[tuple[str, int | None], ConfigError] = {}
    for error in found:
        by_field.setdefault((error.field or error.message, error.line), error)
    first, *rest = by_field.values()
    first.more = tuple(rest)
    return first


class YamlSource:
    """One YAML file: its ``data``, and errors that name file, line and field."""

    def __init__(self, path: Path) -> None:
        """Read and parse the file. Raises ConfigError when it cannot be read, is empty or is not valid YAML."""
        self._path = path
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"cannot be read: {error}", file=str(path)) from error
        try:
            loader = _UniqueKeyLoader(text)
        except yaml.YAMLError as error:  # a character that YAML has not
            raise ConfigError(f"not valid YAML: {error}", file=str(path)) from error
        try:
            root = loader.get_single_node()
            if root is None:
                raise ConfigError("the file is empty", file=str(path), line=1)
            self._root: yaml.Node = root
            self.data = loader.construct_document(root)
            if loader.wrong:
                said = [
                    ConfigError(f"not valid YAML: {what}", file=str(path), line=line) for what, line in loader.wrong
                ]
                raise gathered(said)
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            line = mark.line + 1 if mark else None
            raise ConfigError(f"not valid YAML: {error.problem}", file=str(path), line=line) from error
        except yaml.YAMLError as error:
            raise ConfigError(f"not valid YAML: {error}", file=str(path)) from error
        except RecursionError:
            raise ConfigError("not valid YAML: nested too deeply", file=str(path)) from None
        finally:
            loader.dispose()

    @contextmanager
    def located(self, at: FieldPath) -> Iterator[None]:
        """Context manager: add the file, and the line and name of the field ``at``, to a ConfigError within.

        Raise pydantic's ValidationError of the value at ``at`` as a ConfigError for each of its complaints.
        """
        try:
            yield
        except ConfigError as error:
            raise self.error(at, error.message, type(error)) from error
        except ValidationError as error:
            raise gathered([self._of_complaint(at, each) for each in error.errors()]) from None

    def _of_complaint(self, at: FieldPath, complaint: ErrorDetails) -> ConfigError:
        within = place_of(complaint)
        message = complaint["msg"].removeprefix("Value error, ")
        if complaint["type"] == "extra_forbidden":
            message = _NOT_SUPPORTED.get(str(within[-1]), "unknown key")
        return self.error((*at, *within), message)

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
