"""The variables of Compose's files: which have to be set, and what a set one changes."""

import json
import re
from collections.abc import Mapping
from typing import Any

import pytest
import yaml

from omni_jobs.pipelines.loader import load_pipelines
from tests.compose.trial import REQUIRED
from tests.packaging.compose_file import COMPOSE, ROOT
from tests.packaging.interpolation import Missing, Variable, interpolated, variables_of
from tests.packaging.test_compose_overrides import Loader

PIPELINES = load_pipelines(ROOT / "stage_configs")
OWN = {name: f"{name.upper()}_DIR" for name in PIPELINES if f"{{{name.upper()}_DIR:" in COMPOSE.read_text()}


def read(values: Mapping[str, str], name: str = "docker-compose.yml") -> dict[str, Any]:
    """A file of Compose as it reads it with these variables. Raises Missing."""

    def walk(node: Any) -> Any:
        if isinstance(node, dict):
            return {key: walk(part) for key, part in node.items()}
        if isinstance(node, list):
            return [walk(part) for part in node]
        return interpolated(node, values) if isinstance(node, str) else node

    return dict(walk(yaml.load((ROOT / name).read_text(), Loader)))


def directories(service: dict[str, Any]) -> dict[str, str]:
    """Target → source of the mounts of checkpoints."""
    found = [each for each in service.get("volumes", []) if isinstance(each, dict) and each["type"] == "bind"]
    return {each["target"]: each["source"] for each in found if each["target"].startswith("/models")}


def test_a_word_has_variables_too() -> None:
    assert list(variables_of("${A:-${B:?no ${C}}/x} $$")) == [
        Variable("A", ":-", "${B:?no ${C}}/x"), Variable("B", ":?", "no ${C}"), Variable("C", "", "")
    ]  # fmt: skip
    assert interpolated("${A:-${B:-b}/x} ${A:+_own} ${A-a} $$", {"A": ""}) == "b/x   $"
    assert interpolated("${A:-${B:-b}/x}${A:+_own} ${A-a}", {"A": "here"}) == "here_own here"


@pytest.mark.parametrize("name", ["docker-compose.yml", *sorted(path.name for path in ROOT.glob("compose.*.yml"))])
def test_each_required_variable_that_is_left_out_is_named_with_what_to_do(name: str) -> None:
    text = (ROOT / name).read_text()
    required = {each.name: each.word for each in variables_of(text) if each.operator.endswith("?")}
    for left_out, message in required.items():
        with pytest.raises(Missing) as error:
            read({each: "here" for each in required if each != left_out}, name)
        assert error.value.args == (left_out, message)
        assert re.search(r"see (\S+)$", message), f"{left_out}: {message}"
        assert (ROOT / message.rpartition("see ")[2]).is_file(), message
    read(dict.fromkeys(required, "here"), name)


def test_the_trial_leaves_out_each_required_variable() -> None:
    required = {
        each.name
        for path in (COMPOSE, *ROOT.glob("compose.*.yml"))
        for each in variables_of(path.read_text())
        if each.operator == ":?"
    }
    assert required == set(REQUIRED)


def test_only_workers_of_a_pipeline_with_a_checkpoint_need_one() -> None:
    """And the API has that of every pipeline, or the directory of this repository that has none."""
    assert set(OWN) == {
        name
        for name, pipeline in PIPELINES.items()
        if any(stage.runner.torch and stage.model is not None for stage in pipeline.stages.values())
    }
    for values in ({"COMPOSE_PROFILES": "echo"}, {"COMPOSE_PROFILES": "echo", "MODELS_DIR": "/srv"}):
        root = values.get("MODELS_DIR", "./models")
        found = read(values)["services"]
        for name, service in found.items():
            if name == "api":
                own = {f"/models_own/{pipeline}": "./models" for pipeline in OWN}
                assert directories(service) == {"/models": root, **own}
            elif service.get("runtime") and service["profiles"] != ["images"]:
                (pipeline,) = service["profiles"]
                assert directories(service) == {f"/models/{pipeline}": f"{root}/{pipeline}"}, name
            else:
                assert directories(service) == {}, name
    assert (ROOT / "models" / "README.md").is_file()


@pytest.mark.parametrize("pipeline", sorted(OWN))
def test_a_checkpoint_that_is_elsewhere_has_a_variable_of_its_own(pipeline: str) -> None:
    found = read({"COMPOSE_PROFILES": pipeline, OWN[pipeline]: "/elsewhere/it"})["services"]
    target = f"/models_own/{pipeline}"
    for name, service in found.items():
        if service.get("runtime") and service.get("profiles") == [pipeline]:
            assert directories(service) == {target: "/elsewhere/it"}, name
        if name == "api" or service.get("profiles") == [pipeline]:
            models = json.loads(service["environment"]["OMNI_JOBS_MODELS"])
            own = {each: path for each, path in models.items() if path.startswith("/models_own/")}
            assert [(each.partition(".")[0], path) for each, path in own.items()] == [(pipeline, target)]
    assert directories(found["api"])[target] == "/elsewhere/it"
    assert "".join(directories(found["echo-first"])) == ""


def test_git_keeps_checkpoints_out() -> None:
    assert {"/models/*", "!/models/README.md"} <= set((ROOT / ".gitignore").read_text().splitlines())
