import inspect
import json
from typing import Any

import pytest

from omni_jobs import errors
from omni_jobs.errors import ConfigError, ObjectCorrupt, OmniJobsError, StageError

ALL = [value for value in vars(errors).values() if inspect.isclass(value) and issubclass(value, OmniJobsError)]


def test_every_error_is_drawn_in_the_tree() -> None:
    names = {error.__name__ for error in ALL}
    assert errors.__doc__ is not None
    assert all(name in errors.__doc__ for name in names)


def test_codes_are_unique() -> None:
    codes = [error.code for error in ALL]
    assert len(codes) == len(set(codes))


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
def test_an_error_is_read_as_it_was_written(kind: type[OmniJobsError]) -> None:
    details: dict[str, Any] = {name: 7 if name in ("line", "size", "retry_after_s") else name for name in kind.details}
    error = kind("it broke", **details)
    read = OmniJobsError.from_dict(json.loads(json.dumps(error.to_dict())))
    assert (type(read), vars(read)) == (kind, vars(error))


def test_an_error_of_a_later_build_keeps_its_code_in_its_message() -> None:
    error = OmniJobsError.from_dict({"code": "melted", "message": "too hot", "stage": "talker", "key": ["no", "text"]})
    assert (type(error), str(error), error.retryable) == (OmniJobsError, "melted: too hot (stage talker)", False)
    assert OmniJobsError.from_dict({"code": "melted", "message": "too hot", "retryable": True}).retryable


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
def test_the_docstring_is_the_default_message(kind: type[OmniJobsError]) -> None:
    assert kind().message == (kind.__doc__ or "").splitlines()[0]
    assert kind().message


def test_an_error_says_what_it_is_about() -> None:
    error = ObjectCorrupt("wrong digest", key="jobs/1/payloads/thinker/1", stage="talker")
    assert str(error) == "wrong digest (stage talker, key jobs/1/payloads/thinker/1)"
    assert error.to_dict() == {
        "code": "object_corrupt",
        "message": "wrong digest",
        "retryable": False,
        "stage": "talker",
        "key": "jobs/1/payloads/thinker/1",
    }


def test_a_config_error_begins_with_file_and_line() -> None:
    error = ConfigError("unknown key", file="a.yaml", line=7, field="stages.talker.speed")
    assert str(error) == "a.yaml:7: stages.talker.speed: unknown key"


@pytest.mark.parametrize("text", ["数据错误", "خطأ", "😀 \u0000"])
def test_messages_in_any_script_pass_unharmed(text: str) -> None:
    assert StageError(text).to_dict()["message"] == text
