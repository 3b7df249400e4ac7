"""The chart of deploy/kubernetes: what Helm renders of the samples, against Kubernetes' schemas and our program.

Helm and the schemas come from packages of the tests, and need no cluster. No control plane was in reach: that a cluster
takes the objects, and what it makes of them, is not tested. KEDA's objects are held against a schema of this file.
"""

import copy
import json
import re
import shlex
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import helm_python
import jsonschema
import kubernetes_validate
import pytest
import yaml

from omni_jobs.pipelines.loader import load_pipelines
from omni_jobs.settings import Settings
from tests.docs.pages import blocks, page
from tests.packaging.charts import CHART, HEADER, KUBERNETES, NAME, SAMPLES, manifests, rendered, sample_values
from tests.packaging.command_lines import parsed, unknown_variables
from tests.packaging.roles import FILES

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
REFERENCES = {
    "type": "array",
    "items": {
        "type": "object",
        "additionalProperties": False,
        "required": ["parameter", "name", "key"],
        "properties": {name: {"type": "string"} for name in ("parameter", "name", "key")},
    },
}
TRIGGER_AUTHENTICATION = {
    "type": "object",
    "additionalProperties": False,
    "required": ["secretTargetRef"],
    "properties": {"secretTargetRef": REFERENCES, "configMapTargetRef": REFERENCES},
}
WORKER = {"pipeline": "echo", "stage": "first", "image": "api"}
URL = "http://10.0.0.5:8001/v1"
AUTHORITIES = "/etc/omni-jobs/authorities/ca.crt"
AUTHORITY = {"kind": "ConfigMap", "name": "authorities", "key": "ca.crt"}
KEDA = {"ScaledObject": SCALED_OBJECT, "TriggerAuthentication": TRIGGER_AUTHENTICATION}


@pytest.fixture(scope="module", params=SAMPLES)
def objects(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    return manifests(rendered(sample_values(request.param)))


def pods(objects: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    return (found["spec"]["template"] for found in objects if found["kind"] in WORKLOADS)


def containers(pod: dict[str, Any]) -> list[dict[str, Any]]:
    return [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]]


def role_of(pod: dict[str, Any]) -> str:
    """The role whose Secret is a pod's."""
    component: str = pod["metadata"]["labels"]["app.kubernetes.io/component"]
    return component.partition("-")[0]


FIELDS = {"spec.nodeName": "node-a"}  # what Kubernetes fills in


def variables(container: dict[str, Any]) -> dict[str, str]:
    """What a container sets itself."""
    return {
        each["name"]: each["value"] if "value" in each else FIELDS[each["valueFrom"]["fieldRef"]["fieldPath"]]
        for each in container.get("env", [])
    }


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
    accounts, maps = named(objects, "ServiceAccount"), named(objects, "ConfigMap")
    labels = [pod["metadata"]["labels"] for pod in pods(objects)]
    for pod in pods(objects):
        spec = pod["spec"]
        assert spec["serviceAccountName"] in accounts
        volumes = {volume["name"]: volume for volume in spec["volumes"]}
        for volume in volumes.values():  # the operator makes what they name
            assert volume.get("persistentVolumeClaim", {}).get("claimName", "models") in {"models", "load-locks"}
            assert volume.get("configMap", {}).get("name", "authorities") == "authorities"
        mounted = set()
        for container in containers(pod):
            mounted |= {mount["name"] for mount in container["volumeMounts"]}
            assert {source["configMapRef"]["name"] for source in container["envFrom"]} <= set(maps)
            ports = {port["name"] for port in container.get("ports", [])}
            for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
                if asked := container.get(probe, {}).get("httpGet"):
                    assert {asked["port"]} == {asked["scheme"].lower()} == ports
        assert mounted == set(volumes)

    def selects(selector: dict[str, str]) -> bool:
        return any(selector.items() <= found.items() for found in labels)

    for found in objects:
        spec = found.get("spec", {})
        if found["kind"] == "Service":
            assert selects(spec["selector"])
            for port in spec.get("ports", []):
                [api] = named(objects, "Deployment")["omni-jobs-api"]["spec"]["template"]["spec"]["containers"]
                assert (port["targetPort"], port["port"]) == (api["ports"][0]["name"], api["ports"][0]["containerPort"])
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
            url = urlsplit(trigger["metadata"]["url"])
            [api] = named(objects, "Deployment")["omni-jobs-api"]["spec"]["template"]["spec"]["containers"]
            assert url.hostname in variables(api)["OMNI_JOBS_ALLOWED_HOSTS"].split(",")
            assert {"name": url.scheme, "containerPort": url.port} in api["ports"]
            assert trigger["authenticationRef"]["name"] in named(objects, "TriggerAuthentication")


def test_a_version_has_workers_and_an_autoscaler_of_its_own() -> None:
    values = sample_values("fleet")
    worker = next(each for each in values["workers"] if "scaling" in each)
    values["workers"].append({**worker, "pipeline": f"{worker['pipeline']}@1.0-RC2"})
    objects = manifests(rendered(values))
    name = f"{NAME}-{worker['pipeline'].replace('_', '-')}-1-0-rc2-{worker['stage'].replace('_', '-')}"
    for found in objects:
        if found["kind"] not in KEDA:
            kubernetes_validate.validate(found, VERSIONS[-1], strict=True)
    [container] = containers(named(objects, "StatefulSet")[name]["spec"]["template"])
    assert container["command"][2:4] == ["--pipeline", f"{worker['pipeline']}@1.0-RC2"]
    [trigger] = named(objects, "ScaledObject")[name]["spec"]["triggers"]
    asked = dict(parse_qsl(urlsplit(trigger["metadata"]["url"]).query))
    assert asked == {"pipeline": f"{worker['pipeline']}@1.0-RC2", "stage": worker["stage"]}


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
            own = variables(container)
            assert unknown_variables(settings | own) == set()
            read = {
                name.removeprefix("OMNI_JOBS_").lower(): value
                for name, value in (settings | own).items()
                if name.startswith("OMNI_JOBS_") and not name.endswith(("_FILE", "_MODELS")) and name != "OMNI_JOBS_URL"
            }
            Settings.model_validate_strings({**read, "models": json.loads(settings.get("OMNI_JOBS_MODELS", "{}"))})
            if names == ["worker"]:
                pipeline, stage = str(parameters["pipeline"]), str(parameters["stage"])
                assert own["OMNI_JOBS_BEAT_FILE"]
                assert own["OMNI_JOBS_HOST_NAME"] == FIELDS["spec.nodeName"]
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
            assert all(each.get("valueFrom", {}).keys() <= {"fieldRef"} for each in container.get("env", []))
    for found in named(objects, "StatefulSet").values():
        spec = found["spec"]["template"]["spec"]
        drain_s = float(named(objects, "ConfigMap")["omni-jobs-settings"]["data"]["OMNI_JOBS_DRAIN_S"])
        assert spec["terminationGracePeriodSeconds"] >= drain_s + 50  # docs/operations/stop.md
        [container] = spec["containers"]
        on_gpu = {"name": "OMNI_JOBS_DEVICE", "value": "cuda"} in container["env"]
        assert on_gpu == bool(container["resources"]["limits"].get("nvidia.com/gpu"))
        assert on_gpu == container["image"].startswith("omni-jobs-worker:")


def test_a_pod_mounts_the_secret_of_its_role_and_no_other(objects: list[dict[str, Any]]) -> None:
    for pod in pods(objects):
        role = role_of(pod)
        volumes = {each["name"]: each["secret"] for each in pod["spec"]["volumes"] if "secret" in each}
        certificate = {"tls": "omni-jobs-tls"} if role == "api" and "tls" in volumes else {}
        assert {name: each["secretName"] for name, each in volumes.items()} == {
            "secrets": f"omni-jobs-{role}",
            **certificate,
        }
        keys = {each["key"] for each in volumes["secrets"]["items"]}
        assert all(each["key"] == each["path"] for each in volumes["secrets"]["items"])
        [container] = containers(pod)
        assert "initContainers" not in pod["spec"]
        assert not any("secretRef" in source for source in container["envFrom"])
        words = [*container["command"], *variables(container).values()]
        named_files = {found for word in words for found in re.findall(r"^/run/omni-jobs/secrets/(.+)", word)}
        assert named_files == keys, role
    roles = {role_of(pod) for pod in pods(objects)}
    assert roles == set(FILES)


def test_the_commands_of_the_docs_make_these_secrets(objects: list[dict[str, Any]]) -> None:
    """Of the files of scripts/secrets that docker-compose.yml gives to the same roles."""
    made = {}
    text = page("operations/kubernetes.md")
    for line in "".join(blocks(text, "bash")).splitlines():
        if line.startswith("kubectl create secret generic"):
            words = shlex.split(line)
            assert words[4:6] == ["--namespace", "jobs"]
            made[words[6]] = [word.removeprefix("--from-file=") for word in words[7:]]
    assert made.pop("omni-jobs-scaling") == ["--from-literal=api_key=KEY"]
    assert set(made) == {f"omni-jobs-{role}" for role in FILES}
    for role, files in FILES.items():
        given = made[f"omni-jobs-{role}"]
        assert {word.rpartition("secrets/")[2] for word in given} == files
        keys = {word.partition("=")[0] if "=" in word else word.removeprefix("secrets/") for word in given}
        mounted = [pod["spec"]["volumes"] for pod in pods(objects) if role_of(pod) == role]
        for volumes in mounted:
            [secret] = [each["secret"] for each in volumes if each["name"] == "secrets"]
            assert {each["key"] for each in secret["items"]} == keys
    defaults = helm_python.values_from_yaml((CHART / "values.yaml").read_text(encoding="utf-8"))
    assert set(defaults["secrets"].values()) == {*made, "omni-jobs-scaling"}


def test_each_connection_can_be_tls() -> None:
    """The sample of a fleet has all of it, and with a Secret for the authorities the same objects."""
    values = sample_values("fleet")
    for kind in ("ConfigMap", "Secret"):
        values["tls"]["authorities"]["kind"] = kind
        objects = manifests(rendered(values))
        test_kubernetes_schemas_take_every_object(objects, VERSIONS[-1])
        settings = named(objects, "ConfigMap")["omni-jobs-settings"]["data"]
        assert settings["AWS_CA_BUNDLE"] == AUTHORITIES
        assert settings["OMNI_JOBS_S3_ENDPOINT_URL"].startswith("https://")
        for pod in pods(objects):
            [volume] = [each for each in pod["spec"]["volumes"] if each["name"] == "authorities"]
            source = volume["configMap"] if kind == "ConfigMap" else volume["secret"]
            assert (source.get("name", source.get("secretName")), source["items"][0]["path"]) == (
                "authorities",
                "ca.crt",
            )
            [container] = containers(pod)
            assert {"name": "authorities", "mountPath": str(Path(AUTHORITIES).parent), "readOnly": True} in container[
                "volumeMounts"
            ]
            own = variables(container)
            is_api = role_of(pod) == "api"
            assert ("OMNI_JOBS_TLS_CERTIFICATE" in own, "OMNI_JOBS_TLS_KEY" in own) == (is_api, is_api)
            if is_api:
                url = urlsplit(own["OMNI_JOBS_URL"])
                assert (url.scheme, own["OMNI_JOBS_CA_FILE"]) == ("https", AUTHORITIES)
                assert url.hostname in own["OMNI_JOBS_ALLOWED_HOSTS"].split(",")
        [authentication] = named(objects, "TriggerAuthentication").values()
        found = {
            (key, each["parameter"], each["name"]) for key, listed in authentication["spec"].items() for each in listed
        }
        place = "configMapTargetRef" if kind == "ConfigMap" else "secretTargetRef"
        assert found == {("secretTargetRef", "token", "omni-jobs-scaling"), (place, "ca", "authorities")}


def test_a_fleet_without_tls_is_asked_by_plain_http() -> None:
    values = sample_values("fleet")
    del values["tls"]
    objects = manifests(rendered(values))
    test_whatever_an_object_names_is_there(objects)
    urls = {each["spec"]["triggers"][0]["metadata"]["url"] for each in named(objects, "ScaledObject").values()}
    assert {urlsplit(url).scheme for url in urls} == {"http"}
    assert "OMNI_JOBS_URL" not in rendered(values)


def test_a_remote_stage_has_its_servers_and_their_keys_are_its_pods_alone() -> None:
    servers = {
        "local": {"url": "https://10.0.0.5:8001/v1", "key": "local_key", "authorities": True},
        "open": {"url": URL},
    }
    remote = {**WORKER, "stage": "second", "servers": servers, "serverKeysSecret": "my-servers"}
    values = {"workers": [WORKER, remote], "tls": {"authorities": AUTHORITY}}
    objects = manifests(rendered(values))
    test_kubernetes_schemas_take_every_object(objects, VERSIONS[-1])
    test_whatever_an_object_names_is_there(objects)
    assert {
        pod["metadata"]["labels"]["app.kubernetes.io/component"]
        for pod in pods(objects)
        if any(volume.get("secret", {}).get("secretName") == "my-servers" for volume in pod["spec"]["volumes"])
    } == {"worker-echo-second"}
    [container] = named(objects, "StatefulSet")["omni-jobs-echo-second"]["spec"]["template"]["spec"]["containers"]
    made = Settings.model_validate_strings({"servers": json.loads(variables(container)["OMNI_JOBS_SERVERS"])}).servers
    assert made["local"].key_file == Path("/run/omni-jobs/servers/local_key")
    assert str(made["local"].ca_file) == AUTHORITIES
    assert (made["open"].url, made["open"].key_file) == (URL, None)


def test_workers_that_share_a_card_share_the_volume_of_their_locks() -> None:
    """It is the one place that they write to and that others see; the group of the volume is that of the pods."""
    claim = yaml.safe_load((KUBERNETES / "load-locks.yaml").read_text(encoding="utf-8"))
    for version in VERSIONS:
        kubernetes_validate.validate(claim, version, strict=True)
    objects = manifests(rendered(sample_values("one-gpu")))
    for pod in pods(objects):
        claims = {
            volume["name"]: volume["persistentVolumeClaim"]
            for volume in pod["spec"]["volumes"]
            if "persistentVolumeClaim" in volume and volume["name"] != "models"
        }
        [container] = containers(pod)
        if role_of(pod) != "worker":
            assert (claims, "OMNI_JOBS_LOAD_LOCKS_DIR" in variables(container)) == ({}, False)
            continue
        assert claims == {"load-locks": {"claimName": claim["metadata"]["name"]}}
        directory = variables(container)["OMNI_JOBS_LOAD_LOCKS_DIR"]
        assert {"name": "load-locks", "mountPath": directory} in container["volumeMounts"]
        user = pod["spec"]["securityContext"]
        assert user["fsGroup"] == user["runAsGroup"] == user["runAsUser"]
    assert "load-locks" not in rendered({"workers": [WORKER]})


def test_behind_a_proxy_the_api_is_reached_by_what_the_policies_name_alone() -> None:
    def ingress(**policies: object) -> list[dict[str, Any]]:
        values = {"api": {"auth": "proxy", "tenantHeader": "X-Tenant"}, "networkPolicies": policies}
        objects = manifests(rendered(values))
        test_kubernetes_schemas_take_every_object(objects, VERSIONS[-1])
        [container] = named(objects, "Deployment")["omni-jobs-api"]["spec"]["template"]["spec"]["containers"]
        own = {
            name.removeprefix("OMNI_JOBS_").lower(): value
            for name, value in variables(container).items()
            if name in ("OMNI_JOBS_AUTH", "OMNI_JOBS_TENANT_HEADER")
        }
        found = Settings.model_validate_strings({**own, "api_host": "0.0.0.0"})
        assert (found.resolved_auth, found.tenant_header) == ("proxy", "X-Tenant")
        [rule] = named(objects, "NetworkPolicy")["omni-jobs-api"]["spec"]["ingress"]
        return list(rule["from"])

    of_pods = {"podSelector": {"matchLabels": {"app": "gate"}}}
    of_space = {"namespaceSelector": {"matchLabels": {"team": "edge"}}}
    assert ingress(apiFromPods=[{"app": "gate"}]) == [of_pods]
    assert ingress(apiFromPods=[], apiFrom=[{"team": "edge"}]) == [of_space]
    [policy] = [named(manifests(rendered({})), "NetworkPolicy")["omni-jobs-api"]]
    assert policy["spec"]["ingress"][0]["from"] == [{"podSelector": {}}]  # with keys, all pods of the namespace


@pytest.mark.parametrize(
    "change",
    [{"settings": {"OMNI_JOBS_LOG": "json"}}, {"drainSeconds": 20}, {"storage": {"url": "s3://other"}}],
    ids=str,
)
def test_a_change_of_what_the_chart_makes_starts_the_pods_anew(change: dict[str, Any]) -> None:
    """The chart makes one ConfigMap, which processes read as they start, and no Secret."""

    def templates(values: dict[str, Any]) -> dict[str, dict[str, Any]]:
        objects = manifests(rendered({**sample_values("cpu"), **values}))
        assert (len(named(objects, "ConfigMap")), named(objects, "Secret")) == (1, {})
        lasting = {**named(objects, "Deployment"), **named(objects, "StatefulSet")}
        return {name: found["spec"]["template"]["metadata"]["annotations"] for name, found in lasting.items()}

    before, after = templates({}), templates(change)
    assert before == templates({})
    assert before.keys() == after.keys()
    assert all(before[name] != after[name] for name in before)


def test_the_values_of_the_docs_are_taken() -> None:
    """Each block, over a sample that has what it leaves out."""
    found = blocks(page("operations/kubernetes.md"), "yaml")
    assert len(found) >= 3
    for block in found:
        rendered({**sample_values("one-gpu"), **helm_python.values_from_yaml(block)})
    [remote] = re.findall(r"`(\{pipeline: my_remote.*?\})`", page("operations/kubernetes.md"))
    rendered(helm_python.values_from_yaml(f"workers: [{remote}]"))


def test_jobs_of_others_need_no_secret() -> None:
    """A bucket that is there, and a database that somebody else migrates."""
    objects = manifests(rendered({**sample_values("cpu"), "bucket": {"enabled": False}, "migrate": {"enabled": False}}))
    assert {role_of(pod) for pod in pods(objects)} == {"api", "rescuer", "worker"}


PROXY = {"auth": "proxy", "tenantHeader": "X-Tenant"}
STORAGE_TLS = {"tls": {"authorities": AUTHORITY, "storage": True}}
WRONG: list[tuple[str, dict[str, Any]]] = [
    ("/api/replicas': minimum: got 0, want 1", {"api": {"replicas": 0}}),
    ("/api/replicas': got string, want integer", {"api": {"replicas": "two"}}),
    ("additional properties 'unknown' not allowed", {"unknown": 1}),
    ("additional properties 'secretName' not allowed", {"secretName": "omni-jobs"}),
    ("/storage/url': 'file:///data' does not match", {"storage": {"url": "file:///data"}}),
    ("/workers/0/image': value must be one of 'api'", {"workers": [{**WORKER, "image": "mine"}]}),
    ("/workers/0': missing property 'stage'", {"workers": [{"pipeline": "echo", "image": "api"}]}),
    ("/workers/0/stage': 'first; sh' does not match", {"workers": [{**WORKER, "stage": "first; sh"}]}),
    ("/workers/0': missing property 'gpus'", {"workers": [{**WORKER, "image": "worker"}]}),
    ("/workers/0/gpus': maximum: got 1, want 0", {"workers": [{**WORKER, "gpus": 1}]}),
    ("gpuMemoryUtilization", {"workers": [{**WORKER, "image": "worker", "gpus": 1, "gpuMemoryUtilization": 1.5}]}),
    ("/workers/0/scaling': missing property 'max'", {"workers": [{**WORKER, "scaling": {"min": 1}}]}),
    ("echo.first has scaling, which needs keda.enabled", {"workers": [{**WORKER, "scaling": {"max": 2}}]}),
    (
        "echo.first has replicas and scaling",
        {"keda": {"enabled": True}, "workers": [{**WORKER, "replicas": 2, "scaling": {"max": 2}}]},
    ),
    (
        "echo.first has a scaling.min above its scaling.max",
        {"keda": {"enabled": True}, "workers": [{**WORKER, "scaling": {"min": 3, "max": 2}}]},
    ),
    ("two workers would be named", {"workers": [WORKER, WORKER]}),
    ("longer than 52 characters", {"workers": [{**WORKER, "pipeline": "a" * 40, "stage": "b" * 40}]}),
    ("DATABASE_URL is or names a secret", {"settings": {"OMNI_JOBS_DATABASE_URL": "postgresql://a:b@c/d"}}),
    ("BROKER_URL_FILE is or names a secret", {"settings": {"OMNI_JOBS_BROKER_URL_FILE": "/run/url"}}),
    ("SERVERS is made of the value workers", {"settings": {"OMNI_JOBS_SERVERS": "{}"}}),
    ("local of echo.first has a key", {"workers": [{**WORKER, "servers": {"local": {"url": URL, "key": "k"}}}]}),
    (
        "local of echo.first is verified by tls.authorities, which names none",
        {"workers": [{**WORKER, "servers": {"local": {"url": URL, "authorities": True}}}]},
    ),
    ("serverKeysSecret names the Secret", {"workers": [{**WORKER, "serverKeysSecret": "omni-jobs-api"}]}),
    ("DRAIN_S is made of the value drainSeconds", {"settings": {"OMNI_JOBS_DRAIN_S": "20"}}),
    ("TLS_KEY is made of the value tls.apiSecret", {"settings": {"OMNI_JOBS_TLS_KEY": "/tmp/key"}}),
    ("AUTH is made of the value api.auth", {"settings": {"OMNI_JOBS_AUTH": "off"}}),
    ("HEADER is made of the value api.tenantHeader", {"settings": {"OMNI_JOBS_TENANT_HEADER": "X"}}),
    ("/api/auth': value must be one of 'keys', 'proxy'", {"api": {"auth": "off"}}),
    ("api.tenantHeader is for the api.auth proxy alone", {"api": {"tenantHeader": "X-Tenant"}}),
    ("name the header in which it names the tenant", {"api": {"auth": "proxy"}}),
    ("name the proxy's pods alone by networkPolicies.apiFromPods", {"api": PROXY}),
    ("leave networkPolicies.enabled true", {"api": PROXY, "networkPolicies": {"enabled": False}}),
    ("no pod may reach the API", {"api": PROXY, "networkPolicies": {"apiFromPods": []}}),
    ("/workers/0/loadLocksClaim'", {"workers": [{**WORKER, "loadLocksClaim": "load-locks"}]}),
    ("LOCKS_DIR is made of the value workers", {"settings": {"OMNI_JOBS_LOAD_LOCKS_DIR": "/tmp/locks"}}),
    ("/settings/OMNI_JOBS_LOG': minLength", {"settings": {"OMNI_JOBS_LOG": ""}}),
    ("invalid propertyName 'PATH'", {"settings": {"PATH": "/tmp"}}),
    ("/models/chat': '/srv/chat' does not match", {"models": {"chat": "/srv/chat"}}),
    ("modelsClaim mounts nothing: name the claim", {"models": {"chat": "/models/chat"}}),
    ("/secrets/api': '' does not match", {"secrets": {"api": ""}}),
    ("/secrets': additional properties 'apii' not allowed", {"secrets": {"apii": "mine"}}),
    ("the Secret mine is that of two roles, api and worker", {"secrets": {"api": "mine", "worker": "mine"}}),
    ("omni-jobs-api is that of two roles", {"tls": {"apiSecret": "omni-jobs-api"}}),
    (
        "the Secret omni-jobs-api of a role, which other pods would mount",
        {"tls": {"authorities": {"kind": "Secret", "name": "omni-jobs-api"}}},
    ),
    ("/tls/authorities/kind': value must be one of 'ConfigMap', 'Secret'", {"tls": {"authorities": {"kind": "File"}}}),
    ("/storage/endpointUrl': '' does not match pattern '\\^https://'", STORAGE_TLS),
    ("'http://objects' does not match pattern", {**STORAGE_TLS, "storage": {"endpointUrl": "http://objects"}}),
    (
        "/tls/authorities/name': minLength: got 0, want 1",
        {"tls": {"storage": True}, "storage": {"endpointUrl": "https://objects"}},
    ),
    ("/images/api/digest': 'latest' does not match", {"images": {"api": {"repository": "a", "digest": "latest"}}}),
]


@pytest.mark.parametrize(("said", "values"), WRONG)
def test_wrong_values_are_refused(said: str, values: dict[str, Any]) -> None:
    with pytest.raises(helm_python.HelmError, match=said):
        rendered(values)


def test_the_settings_that_are_refused_are_settings() -> None:
    checks = (CHART / "templates" / "_checks.tpl").read_text(encoding="utf-8")
    names = set(re.findall(r"\"(OMNI_JOBS_\w+)\"", checks))
    assert len(names) > 15
    assert unknown_variables(dict.fromkeys(names, "")) == set()
    rendered({"settings": {"OMNI_JOBS_PUBLIC_URL": "https://jobs.example.com"}})  # others are taken


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
    broken = copy.deepcopy(objects)
    pod = named(broken, "Deployment")["omni-jobs-api"]["spec"]["template"]
    pod["spec"]["volumes"][0]["secret"]["secretName"] = "omni-jobs-migrate"
    with pytest.raises(AssertionError):
        test_a_pod_mounts_the_secret_of_its_role_and_no_other(broken)


def test_the_script_says_whether_manifests_are_stale() -> None:
    done = subprocess.run(
        [ROOT / "scripts" / "render-manifests", "--check"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "up to date\n")
