"""The compose.*.yml beside docker-compose.yml: each names exactly the services that it is for."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.docs.pages import PAGES

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text()
OVERRIDES = sorted(path.name for path in ROOT.glob("compose.*.yml"))


class Loader(yaml.SafeLoader):
    """Reads a value with Compose's tag !reset as the word."""


Loader.add_constructor("!reset", lambda loader, node: "!reset")


def read(name: str) -> dict[str, Any]:
    return dict(yaml.load((ROOT / name).read_text(), Loader))


def services(name: str = "docker-compose.yml") -> dict[str, dict[str, Any]]:
    return dict(read(name)["services"])


def is_ours(service: dict[str, Any]) -> bool:
    return str(service["image"]).startswith("omni-jobs-")


@pytest.mark.parametrize("name", OVERRIDES)
def test_a_page_shows_how_each_is_used(name: str) -> None:
    line = f"COMPOSE_FILE=docker-compose.yml:{name}"
    assert line in (ROOT / name).read_text()
    assert any(line in text for text in PAGES.values()), f"no page shows {line}"


@pytest.mark.parametrize("name", OVERRIDES)
def test_their_form(name: str, tmp_path: Path) -> None:
    """The schema has no tags: what they reset is left out."""
    kept = read(name)
    kept["services"] = {
        service: {key: value for key, value in given.items() if value != "!reset"}
        for service, given in kept["services"].items()
    }
    path = tmp_path / "compose.yml"
    path.write_text(json.dumps(kept))
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(path)]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


def test_a_further_host_has_workers_alone() -> None:
    override = services("compose.hosts.yml")
    assert set(override) == set(services())
    for name, service in services().items():
        if not service.get("profiles"):
            (profile,) = override[name]["profiles"]
            assert profile == ("images" if name == "api" else "first-host"), name
        if name in {"api"} or service.get("profiles"):
            assert override[name]["depends_on"] == "!reset", name


def test_every_worker_on_a_gpu_has_its_card_by_cdi() -> None:
    on_gpus = {name for name, service in services().items() if service.get("runtime")}
    override = services("compose.cdi.yml")
    assert set(override) == on_gpus
    for name, given in override.items():
        assert given["runtime"] == "!reset"
        variable = services()[name]["environment"].get("NVIDIA_VISIBLE_DEVICES")
        assert given.get("devices") == (None if variable is None else [f"nvidia.com/gpu={variable}"]), name


def test_every_worker_on_a_gpu_runs_on_the_cpu_as_well() -> None:
    override = services("compose.cpu.yml")
    assert set(override) == {name for name, service in services().items() if service.get("runtime")}
    for name, given in override.items():
        assert (given["image"], given["runtime"]) == ("omni-jobs-worker-cpu-torch", "!reset"), name
        if name != "worker-image":
            assert given["environment"] == {"OMNI_JOBS_DEVICE": "cpu", "NVIDIA_VISIBLE_DEVICES": ""}, name
    arguments = override["worker-image"]["build"]["args"]
    assert arguments.keys() <= set(re.findall(r"(?m)^ARG (\w+)", DOCKERFILE))
    assert f" AS {arguments['WORKER_PACKAGES']}\n" in DOCKERFILE


@pytest.mark.parametrize("name", ["docker-compose.yml", *OVERRIDES])
def test_a_container_that_cannot_be_written_gets_configs_of_files_alone(name: str) -> None:
    """Compose copies inline content into a container, and refuses that where the file system is read-only."""
    for service, given in services(name).items():
        for config in given.get("configs", []) if given.get("read_only") else []:
            assert "file" in read(name)["configs"][config["source"]], service


@pytest.mark.parametrize("name", OVERRIDES)
def test_nothing_is_reset_through_an_anchor(name: str) -> None:
    """Compose looks for !reset in what a service says itself."""
    anchored = re.findall(r"(?m)^x-.*(?:\n .*)*", (ROOT / name).read_text())
    assert [each for each in anchored if "!reset" in each] == []


def test_prometheus_asks_every_process_that_has_metrics() -> None:
    override = read("compose.metrics.yml")
    config = yaml.safe_load(override["configs"]["prometheus"]["content"])
    (scrape,) = config["scrape_configs"]
    (asked,) = scrape["dns_sd_configs"]
    assert set(asked["names"]) == {name for name, one in services().items() if is_ours(one) and one["restart"] != "no"}
    assert scrape["job_name"] == "omni-jobs", "the alerts name the job"
    for name in asked["names"]:
        given = override["services"].pop(name)["environment"]
        assert given == {"OMNI_JOBS_METRICS_PORT": str(asked["port"]), "OMNI_JOBS_METRICS_HOST": "0.0.0.0"}, name
    for name, one in override["configs"].items():
        assert ("content" in one) or (ROOT / one["file"]).is_file(), name
        assert any(part["source"] == name for service in override["services"].values() for part in service["configs"])
    for service in override["services"].values():
        assert all(port.startswith("127.0.0.1:") for port in service["ports"]), "neither asks for a password"
        assert re.search(r":v?\d+\.\d+\.\d+$", service["image"])


def test_the_api_believes_the_proxy_alone() -> None:
    """And nobody comes to the API but through the proxy, which passes on what docs/operations/proxy.md says."""
    override = read("compose.tls.yml")
    api, proxy = override["services"]["api"], override["services"]["proxy"]
    (subnet,) = override["networks"]["front"]["ipam"]["config"]
    assert api["environment"] == {"OMNI_JOBS_TRUSTED_PROXIES": subnet["subnet"]}
    assert api["ports"] == "!reset"
    assert (api["networks"], proxy["networks"]) == (["default", "front"], ["front"])
    (shown,) = re.findall(r"(?ms)^```nginx\n(.*?)^```", PAGES["docs/operations/proxy.md"])
    asked = set(re.findall(r"(?m)^ *((?:client_|proxy_)(?!pass).*?);", shown))
    content = (ROOT / override["configs"]["proxy"]["file"]).read_text()
    assert asked <= set(re.findall(r"(?m)^ *((?:client_|proxy_)(?!pass).*?);", content))
