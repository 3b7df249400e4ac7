"""The settings of the services: .env.example, the environments in docker-compose.yml, and what the docs say of both."""

import os
import re
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import make_url

from omni_jobs.pipelines.loader import load_pipelines
from omni_jobs.settings import Settings, read_settings
from tests.docs.pages import pages
from tests.packaging.compose_file import COMPOSE, DOCKERFILE, EXAMPLE, example, lasting, mounts, ours
from tests.packaging.interpolation import variables_of


def test_variables_are_in_the_example_with_their_defaults() -> None:
    """But those of cards, which deploy/cards has."""
    content = COMPOSE.read_text()
    lines = [line for line in content.splitlines() if not line.lstrip().startswith("#")]
    used = [each for each in variables_of("\n".join(lines)) if not re.search(r"_GPU(_MEMORY)?$", each.name)]
    shown = dict(reversed(example(EXAMPLE.read_text())))  # the first of each name
    assert {each.name for each in used} == {
        name for name in shown if not name.startswith("OMNI_JOBS_") or f"${{{name}" in content
    }
    for each in used:
        if each.operator == ":-" and not shown[each.name]:
            assert each.word in {f"${{MODELS_DIR:-./models}}/{each.name.removesuffix('_DIR').lower()}", "./models"}, (
                each
            )
        elif each.operator == ":-":
            assert each.word == shown[each.name]
        else:
            assert each.operator == ":?" if each.name == "COMPOSE_PROFILES" else each[1:] == (":+", "_own"), each


def test_the_api_asks_for_keys(services: dict[str, dict[str, Any]]) -> None:
    assert services["api"]["environment"]["OMNI_JOBS_AUTH"] == "keys"


def test_example_warns_of_plain_http() -> None:
    text = EXAMPLE.read_text()
    assert "speaks plain HTTP" in text[: text.index("\nAPI_BIND=")]
    assert "\nAPI_BIND=127.0.0.1\n" in text


def fixed(services: dict[str, dict[str, Any]]) -> set[str]:
    """Settings that an `environment` gives a value of its own, which stands over .env; a secret's file is its value."""
    given = {name for service in ours(services).values() for name in service["environment"]}
    from_env_file = {each.name for each in variables_of(COMPOSE.read_text())}
    settings = {f"OMNI_JOBS_{name.upper()}" for name in Settings.model_fields}
    ours_alone = (name for name in given - from_env_file if name.startswith("OMNI_JOBS_"))
    return {name if name in settings else name.removesuffix("_FILE") for name in ours_alone}


def test_every_other_setting_can_be_set_in_the_env_file(services: dict[str, dict[str, Any]]) -> None:
    for name, service in ours(services).items():
        assert service["env_file"] == [".env"], name
    settings = {f"OMNI_JOBS_{name.upper()}" for name in Settings.model_fields}
    assert fixed(services) <= settings
    shown = {name for name, _ in example(EXAMPLE.read_text()) if name.startswith("OMNI_JOBS_")}
    assert shown <= settings - fixed(services)


def test_docs_and_example_name_the_settings_that_the_env_file_does_not_set(services: dict[str, dict[str, Any]]) -> None:
    (docs,) = re.findall(r"(?m)^`\.env` may set any other .*\n\n(?:- .*\n)+", pages("operations"))
    assert set(re.findall(r"`(OMNI_JOBS_\w+)`", docs)) == fixed(services)
    (comment,) = re.findall(r"(?m)^# Any other setting(?:.*\n# )*.*$", EXAMPLE.read_text())
    assert set(re.findall(r"OMNI_JOBS_\w+", comment)) == fixed(services)


def test_the_env_file_does_not_move_what_an_image_relies_on(services: dict[str, dict[str, Any]]) -> None:
    """An image's own variables yield to .env; its published port and its health check would not move with them."""
    found = re.findall(r"\b(OMNI_JOBS_\w+)=(\S+)", DOCKERFILE.read_text())
    assert dict(found).keys() == {"OMNI_JOBS_API_HOST", "OMNI_JOBS_API_PORT"}
    for name, value in found:
        assert services["api"]["environment"][name] == value


def test_environment_is_valid_settings(
    services: dict[str, dict[str, Any]], secrets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = {f"OMNI_JOBS_{name.upper()}" for name in Settings.model_fields}
    known |= {"OMNI_JOBS_DATABASE_URL_FILE", "OMNI_JOBS_BROKER_URL_FILE"}
    assert set(re.findall(r"OMNI_JOBS_[A-Z0-9_]*[A-Z0-9]", COMPOSE.read_text() + DOCKERFILE.read_text())) <= known | {
        "OMNI_JOBS"
    }
    for service in lasting(services).values():
        with monkeypatch.context() as patch:
            for name in [name for name in os.environ if name.startswith("OMNI_JOBS_")]:
                patch.delenv(name)
            for name, value in service["environment"].items():
                patch.setenv(name, value.replace("/run/secrets", str(secrets)))
            settings = read_settings()
        assert settings.database_url == (secrets / "database_url").read_text().strip()
        assert make_url(settings.database_url).username == "omni_runs"
        broker_url = "worker_broker_url" if "worker" in service.get("command", []) else "broker_url"
        assert settings.broker_url.get_secret_value() == (secrets / broker_url).read_text().strip()
        assert settings.storage_url == "s3://omni-jobs"
        assert settings.pipelines == ("qwen2_5_omni",)
        found = mounts(service)
        assert found[str(settings.stage_configs)].endswith("(read-only)")
        for name, path in settings.models.items():
            assert path == Path("/models") / name.partition(".")[0]


def test_urls_name_services(services: dict[str, dict[str, Any]]) -> None:
    for service in ours(services).values():
        for value in service["environment"].values():
            for host in re.findall(r"^(?:postgresql|redis|http)://(?:[^@/]*@)?([\w.-]+)", value):
                assert host in services


def test_the_example_names_every_pipeline(stage_configs: Path) -> None:
    (comment,) = re.findall(r"(?s)# The pipelines to serve, as a,b: (.*?)\. ", EXAMPLE.read_text())
    named = re.findall(r"\w+", comment.replace(" and ", " "))
    assert sorted(named) == sorted(load_pipelines(stage_configs))
