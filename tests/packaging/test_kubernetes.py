"""The chart of deploy/kubernetes: what Helm renders of the samples, against Kubernetes' schemas and our program.

Helm and the schemas come from packages of the tests, and need no cluster. No control plane was in reach: that a cluster
takes the objects, and what it makes of them, is not tested. KEDA's objects are held against a schema of this file.
"""

import copy
import json
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import helm_python
import jsonschema
import kubernetes_validate
import pytest

from omni_jobs.pipelines.loader import load_pipelines
from omni_jobs.settings import Settings
from tests.packaging.charts import CHART, HEADER, KUBERNETES, SAMPLES, manifests, rendered, sample_values
from tests.packaging.command_lines import parsed, unknown_variables

ROOT = Path(__file__).parents[2]
VERSIONS = ("1.29", "1.37")  # the oldest that the chart takes, and the newest with a schema here
WORKLOADS = ("Deployment", "StatefulSet", "Job")
METADATA = {"type": "object", "required": ["name"], "additionalProperties": {}}
SCALED_OBJECT = {
    "type": "object",
    "additionalProperties": False,
    "required": ["scaleTargetRef", "triggers"],
    "properties": {
        "scaleTargetRef": {
            "type": "object",
            "additionalProperties": False,
            "required": ["name"],
            "properties": {name: {"type": "string"} for name in ("apiVersion", "kind", "name")},
        },
        **{
            name: {"type": "integer", "minimum": 0}
            for name in ("pollingInterval", "cooldownPeriod", "minReplicaCount", "maxReplicaCount")
        },
        "triggers": {
            "type": "array",
            "items": {
                "type": "object",
                "additionalProperties": False,
                "required": ["type", "metadata"],
                "properties": {
                    "type": {"const": "metrics-api"},
                    "metadata": {
                        "type": "object",
                        "additionalProperties": False,
                        "required": ["url", "valueLocation", "targetValue", "authMode"],
                        "properties": {
                            name: {"type": "string"} for name in ("url", "valueLocation", "targetValue", "authMode")
                        },
                    },
                    "authenticationRef": {"type": "object", "required": ["name"], "properties": {"name": {}}},
                },
            },
        },
    },
}
TRIGGER_AUTHENTICATION = {
    "type": "object",
    "additionalProperties": False,
    "required": ["secretTargetRef"],
    "properties": {
        "secretTargetRef": {
            "type": "array",
            "items": {"type": "object", "additionalProperties": False, "required": ["parameter", "name", "key"],
                      "properties": {name: {"type": "string"} for name in ("parameter", "name", "key")}},
        }
    },
}  # fmt: skip
KEDA = {"ScaledObject": SCALED_OBJECT, "TriggerAuthentication": TRIGGER_AUTHENTICATION}


@pytest.fixture(scope="module", params=SAMPLES)
def objects(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    return manifests(rendered(sample_values(request.param)))


def pods(objects: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    return (found["spec"]["template"] for found in objects if found["kind"] in WORKLOADS)


def containers(pod: dict[str, Any]) -> list[dict[str, Any]]:
    return [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]]


def named(objects: list[dict[str, Any]], kind: str) -> dict[str, dict[str, Any]]:
    return {found["metadata"]["name"]: found for found in objects if found["kind"] == kind}


@pytest.mark.parametrize("sample", SAMPLES)
def test_the_plain_manifests_are_what_the_chart_renders(sample: str) -> None:
    """scripts/render-manifests writes them."""
    text = (KUBERNETES / "manifests" / f"{sample}.yaml").read_text(encoding="utf-8")
    assert text == HEADER.format(sample=sample) + rendered(sample_values(sample))


@pytest.mark.parametrize("sample", SAMPLES)
def test_helm_has_nothing_to_say(sample: str) -> None:
    report = helm_python.lint(CHART, sample_values(sample), strict=True)
    assert report["errors"] == []
    assert [found["error"] for found in report["messages"]] == ["icon is recommended"]


@pytest.mark.parametrize("version", VERSIONS)
def test_kubernetes_schemas_take_every_object(objects: list[dict[str, Any]], version: str) -> None:
    for found in objects:
        if schema := KEDA.get(found["kind"]):
            jsonschema.validate(found["spec"], schema)
        else:
            kubernetes_validate.validate(found, version, strict=True)
    names = [(found["kind"], found["metadata"]["name"]) for found in objects]
    assert len(set(names)) == len(names)
    assert all(len(name) <= 63 for _, name in names)


def test_whatever_an_object_names_is_there(objects: list[dict[str, Any]]) -> None:
    values = {"secret": {"omni-jobs", "omni-jobs-owner"}, "claim": {"models"}}  # which the operator makes
    accounts, maps = named(objects, "ServiceAccount"), named(objects, "ConfigMap")
    labels = [pod["metadata"]["labels"] for pod in pods(objects)]
    for pod in pods(objects):
        spec = pod["spec"]
        assert spec["serviceAccountName"] in accounts
        volumes = {volume["name"]: volume for volume in spec["volumes"]}
        for volume in volumes.values():
            assert volume.get("secret", {}).get("secretName", "omni-jobs") in values["secret"]
            assert volume.get("persistentVolumeClaim", {}).get("claimName", "models") in values["claim"]
        mounted = set()
        for container in containers(pod):
            mounted |= {mount["name"] for mount in container["volumeMounts"]}
            assert {source["configMapRef"]["name"] for source in container["envFrom"]} <= set(maps)
            ports = {port["name"] for port in container.get("ports", [])}
            for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
                assert container.get(probe, {}).get("httpGet", {}).get("port", "http") in ports | {"http"}
        assert mounted == set(volumes)

    def selects(selector: dict[str, str]) -> bool:
        return any(selector.items() <= found.items() for found in labels)

    for found in objects:
        spec = found.get("spec", {})
        if found["kind"] == "Service":
            assert selects(spec["selector"])
        if found["kind"] in ("PodDisruptionBudget", "Deployment", "StatefulSet"):
            assert selects(spec["selector"]["matchLabels"])
        if found["kind"] == "NetworkPolicy":
            assert selects(spec["podSelector"]["matchLabels"])
        if found["kind"] == "StatefulSet":
            assert spec["serviceName"] in named(objects, "Service")
        if found["kind"] == "ScaledObject":
            target = named(objects, "StatefulSet")[spec["scaleTargetRef"]["name"]]
            assert "replicas" not in target["spec"]  # else each upgrade would fight with KEDA
            [trigger] = spec["triggers"]
            host = trigger["metadata"]["url"].split("/")[2].partition(":")[0]
            [api] = named(objects, "Deployment")["omni-jobs-api"]["spec"]["template"]["spec"]["containers"]
            [hosts] = [each["value"] for each in api["env"] if each["name"] == "OMNI_JOBS_ALLOWED_HOSTS"]
            assert host in hosts.split(",")
            assert trigger["authenticationRef"]["name"] in named(objects, "TriggerAuthentication")


def test_command_lines_and_variables_are_ours(objects: list[dict[str, Any]]) -> None:
    pipelines = load_pipelines(ROOT / "stage_configs")
    settings = named(objects, "ConfigMap")["omni-jobs-settings"]["data"]
    served = settings["OMNI_JOBS_PIPELINES"].split(",")
    stages = set()
    for pod in pods(objects):
        for container in containers(pod):
            program, *words = container["command"]
            assert program == "omni-jobs"
            names, parameters = parsed(words)
            own = {each["name"]: each["value"] for each in container.get("env", [])}
            assert unknown_variables(settings | own) <= {"WORKER_QUEUE"}
            variables = {
                name.removeprefix("OMNI_JOBS_").lower(): value
                for name, value in (settings | own).items()
                if name.startswith("OMNI_JOBS_") and not name.endswith(("_FILE", "_MODELS"))
            }
            Settings.model_validate_strings({**variables, "models": json.loads(settings.get("OMNI_JOBS_MODELS", "{}"))})
            if names == ["worker"]:
                pipeline, stage = str(parameters["pipeline"]), str(parameters["stage"])
                assert own["WORKER_QUEUE"] == pipelines[pipeline].queue(stage)
                stages.add((pipeline, stage))
    assert stages == {(name, stage) for name in served for stage in pipelines[name].stages}


def test_each_container_is_bounded_and_has_the_secrets_as_files(objects: list[dict[str, Any]]) -> None:
    for pod in pods(objects):
        assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
        assert pod["spec"]["automountServiceAccountToken"] is False
        for container in containers(pod):
            bounds = container["securityContext"]
            assert (bounds["readOnlyRootFilesystem"], bounds["allowPrivilegeEscalation"]) == (True, False)
            assert bounds["capabilities"] == {"drop": ["ALL"]}
            assert not any("valueFrom" in each for each in container.get("env", []))
    for found in named(objects, "StatefulSet").values():
        spec = found["spec"]["template"]["spec"]
        drain_s = float(named(objects, "ConfigMap")["omni-jobs-settings"]["data"]["OMNI_JOBS_DRAIN_S"])
        assert spec["terminationGracePeriodSeconds"] >= drain_s + 50  # docs/operations/stop.md
        [container] = spec["containers"]
        on_gpu = {"name": "OMNI_JOBS_DEVICE", "value": "cuda"} in container["env"]
        assert on_gpu == bool(container["resources"]["limits"].get("nvidia.com/gpu"))
        assert on_gpu == container["image"].startswith("omni-jobs-worker:")


WORKER = {"pipeline": "echo", "stage": "first", "image": "api"}
WRONG: list[tuple[str, dict[str, Any]]] = [
    ("replicas", {"api": {"replicas": 0}}),
    ("replicas", {"api": {"replicas": "two"}}),
    ("unknown", {"unknown": 1}),
    ("url", {"storage": {"url": "file:///data"}}),
    ("image", {"workers": [{**WORKER, "image": "mine"}]}),
    ("stage", {"workers": [{"pipeline": "echo", "image": "api"}]}),
    ("stage", {"workers": [{**WORKER, "stage": "first; sh"}]}),
    ("gpus", {"workers": [{**WORKER, "image": "worker"}]}),
    ("gpus", {"workers": [{**WORKER, "gpus": 1}]}),
    ("gpuMemoryUtilization", {"workers": [{**WORKER, "image": "worker", "gpus": 1, "gpuMemoryUtilization": 1.5}]}),
    ("max", {"workers": [{**WORKER, "scaling": {"min": 1}}]}),
    ("OMNI_JOBS_DATABASE_URL", {"settings": {"OMNI_JOBS_DATABASE_URL": "postgresql://a:b@c/d"}}),
    ("settings", {"settings": {"OMNI_JOBS_LOG": ""}}),
    ("PATH", {"settings": {"PATH": "/tmp"}}),
    ("models", {"models": {"chat": "/srv/chat"}}),
    ("secretName", {"secretName": ""}),
    ("digest", {"images": {"api": {"repository": "a", "digest": "latest"}}}),
    ("two workers would be named", {"workers": [WORKER, WORKER]}),
]


@pytest.mark.parametrize(("said", "values"), WRONG)
def test_wrong_values_are_refused(said: str, values: dict[str, Any]) -> None:
    with pytest.raises(helm_python.HelmError, match=said):
        rendered(values)


def test_the_chart_is_of_this_version() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    with helm_python.Chart.load(CHART) as chart:
        assert (chart.metadata["version"], chart.metadata["appVersion"]) == (version, version)


def test_a_fault_is_seen_by_these_tests(objects: list[dict[str, Any]]) -> None:
    """The schemas and references are looked at indeed."""
    broken = copy.deepcopy(objects)
    named(broken, "Deployment")["omni-jobs-api"]["spec"]["replica"] = 1
    with pytest.raises(kubernetes_validate.ValidationError):
        test_kubernetes_schemas_take_every_object(broken, VERSIONS[-1])
    broken = copy.deepcopy(objects)
    named(broken, "Deployment")["omni-jobs-api"]["spec"]["template"]["spec"]["serviceAccountName"] = "nobody"
    with pytest.raises(AssertionError):
        test_whatever_an_object_names_is_there(broken)


def test_the_script_says_whether_manifests_are_stale() -> None:
    done = subprocess.run(
        [ROOT / "scripts" / "render-manifests", "--check"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "up to date\n")
