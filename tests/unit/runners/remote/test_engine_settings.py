"""Engine settings and parameters of remote stages."""

from typing import Any, get_args

import pytest
from pydantic import ValidationError

from workers.runners.remote.engine_settings import RemoteEngine
from workers.runners.remote.parameters import PARAMETERS_OF_ENDPOINT, ChatParameters, Endpoint, RemoteParameters, given

NEEDED = {"server": "local", "endpoint": "chat", "model": "smol"}


def test_defaults_are_good() -> None:
    engine = RemoteEngine.model_validate(NEEDED)
    assert engine.on("cpu") == engine


@pytest.mark.parametrize(
    "wrong",
    [
        {"server": ""},
        {"endpoint": "embeddings"},
        {"model": ""},
        {"url": "http://127.0.0.1"},
        {"key": "sk-1"},
        {"tries": 0},
        {"wait_s": -1},
        {"wait_s": float("nan")},
        {"max_answer_bytes": 10 << 30},
        {"extra_body": {"model": "another"}},
        {"extra_body": {"stream": False}},
        {"extra_body": {"when": object()}},
    ],
)
def test_wrong_settings_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        RemoteEngine.model_validate({**NEEDED, **wrong})


def test_what_decides_a_result() -> None:
    engine = RemoteEngine.model_validate({**NEEDED, "extra_body": {"top_k": 1}, "tries": 9, "wait_s": 1})
    another = RemoteEngine.model_validate({**NEEDED, "server": "another", "extra_body": {"top_k": 1}})
    assert engine.decisive() == another.decisive() == {"endpoint": "chat", "model": "smol", "extra_body": {"top_k": 1}}


def test_each_endpoint_has_parameters_and_all_are_those_of_each() -> None:
    assert set(PARAMETERS_OF_ENDPOINT) == set(get_args(Endpoint))
    of_all = RemoteParameters.model_json_schema()["properties"]
    of_each = [kind.model_json_schema()["properties"] for kind in PARAMETERS_OF_ENDPOINT.values()]
    assert set(of_all) == {name for properties in of_each for name in properties}
    assert all(of_all[name] == schema for properties in of_each for name, schema in properties.items())


def test_only_what_is_given_is_sent() -> None:
    assert given(ChatParameters(temperature=0.0, stop=("x",)), "chat") == {
        "temperature": 0.0,
        "max_tokens": 1024,
        "stop": ["x"],
    }
    assert given(ChatParameters(max_tokens=None), "chat") == {}
    assert given(RemoteParameters(size="64x64", quality="high"), "images") == {"size": "64x64", "quality": "high"}


@pytest.mark.parametrize(
    "wrong",
    [
        {"temperature": 3},
        {"temperature": "1"},
        {"temperature": float("nan")},
        {"max_tokens": 0},
        {"n": 2},
        {"size": "0x5"},
        {"size": "5"},
        {"speed": 9},
        {"voice": "alloy"},
        {"seconds": 0},
        {"language": "en\r\nX: y"},
        {"stop": ["x"] * 17},
    ],
)
def test_wrong_parameters_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        RemoteParameters.model_validate(wrong)


def test_a_parameter_of_another_endpoint_is_refused_by_name() -> None:
    engine = RemoteEngine.model_validate({**NEEDED, "endpoint": "images"})
    assert RemoteParameters.model_validate({"size": "64x64", "n": 1}, context=engine).size == "64x64"
    with pytest.raises(ValidationError, match="no parameter of the endpoint images, which has size") as caught:
        RemoteParameters.model_validate({"size": "64x64", "max_tokens": 4}, context=engine)
    assert [error["loc"] for error in caught.value.errors()] == [("max_tokens",)]
