"""Every pod's own command of the chart, in its own environment, with its role's Secret alone, until a job is done.

The Secrets are made as docs/operations/kubernetes.md says, and the API speaks https as its certificate of an authority
of one's own lets it. The containers are those of tests.packaging.containers, not a cluster's.
"""

import json
import re
import shlex
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.docs.pages import blocks, page
from tests.packaging.charts import NAME, manifests, rendered
from tests.packaging.containers import MOUNTS, Containers, containers_with_services, read_services
from tests.packaging.test_compose_commands import LISTENS, until
from tests.packaging.test_kubernetes import containers, pods, role_of, variables
from tests.services.certificates import Authority

OF_SERVICES = {"postgres_password", "valkey_users", "s3_identities"}
HOST = f"{NAME}-api.{NAME}.svc"
WAIT_S = 90.0
VALUES: dict[str, Any] = {
    "storage": {"endpointUrl": "http://objects:8333"},
    "tls": {"apiSecret": "omni-jobs-tls", "authorities": {"name": "authorities"}},
    "workers": [{"pipeline": "echo", "stage": stage, "image": "api"} for stage in ("first", "second")],
}


class Pods:
    """The containers of the chart's pods, by component, as services of ``Containers``."""

    def __init__(self, made: Containers, directory: Path) -> None:
        self.made = made
        objects = manifests(rendered(VALUES))
        [settings] = [each["data"] for each in objects if each["kind"] == "ConfigMap"]
        self._found = {}
        for pod in pods(objects):
            [container] = containers(pod)
            paths = {
                "/run/omni-jobs/secrets": f"{MOUNTS}/{role_of(pod)}",
                "/run/omni-jobs/tls": f"{MOUNTS}/tls",
                "/etc/omni-jobs/authorities": f"{MOUNTS}/authorities",
            }
            words, environment = container["command"], settings | variables(container)
            for there, here in paths.items():
                words = [word.replace(there, here) for word in words]
                environment = {name: value.replace(there, here) for name, value in environment.items()}
            component = pod["metadata"]["labels"]["app.kubernetes.io/component"]
            self._found[component] = ({"image": "omni-jobs-api", "environment": environment}, words)
        self._mount(directory)

    def _mount(self, directory: Path) -> None:
        """Make the files of the Secrets and of the ConfigMap."""
        for line in "".join(blocks(page("operations/kubernetes.md"), "bash")).splitlines():
            if found := re.match(
                r"kubectl create secret generic --namespace jobs omni-jobs-(\w+) (--from-file.*)", line
            ):
                (directory / found[1]).mkdir()
                for word in shlex.split(found[2]):
                    key, _, path = word.removeprefix("--from-file=").rpartition("=")
                    shutil.copy(directory / path, directory / found[1] / (key or Path(path).name))
        for path in (directory / "secrets").iterdir():
            if path.name not in OF_SERVICES:
                path.unlink()  # each role has its own alone
        for name in ("tls", "authorities"):
            (directory / name).mkdir()
        authority = Authority(directory)
        certificate = authority.certificate(HOST)
        certificate.file.rename(directory / "tls" / "tls.crt")
        certificate.key_file.rename(directory / "tls" / "tls.key")
        authority.file.rename(directory / "authorities" / "ca.crt")

    def run(self, component: str) -> None:
        code, output = self.made.run(component, *self._found[component])
        assert code == 0, output

    def start(self, component: str) -> None:
        self.made.start(component, *self._found[component])

    def execute(self, component: str, *words: str) -> str:
        """What ``kubectl exec`` does."""
        done = self.made.execute(component, self._found[component][0], list(words))
        assert done.returncode == 0, done.stdout + done.stderr + self.made.log(component).read_text(errors="replace")
        return done.stdout

    def is_well(self, component: str, probe: str) -> bool:
        """What the kubelet asks, without verifying the certificate, as it does."""
        url = f"https://127.0.0.1:8000{probe}"
        look = f"import ssl, urllib.request as r; r.urlopen('{url}', context=ssl._create_unverified_context())"
        return self.made.execute(component, self._found[component][0], ["python", "-c", look]).returncode == 0


@pytest.fixture(scope="module")
def chart(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pods]:
    directory = tmp_path_factory.mktemp("pods")
    services = read_services()
    with containers_with_services(directory, services, ["postgres", "valkey", "objects", HOST]) as made:
        until(made, "postgres", ["python", "-c", LISTENS])
        yield Pods(made, directory)


def test_a_job_is_done_by_pods_that_have_the_secrets_of_their_roles(chart: Pods) -> None:
    for component in ("bucket", "migrate", "bucket", "migrate"):  # each upgrade runs them again
        chart.run(component)
    for component in ("api", "rescuer", "worker-echo-first", "worker-echo-second"):
        chart.start(component)
    deadline = time.monotonic() + WAIT_S
    while not chart.is_well("api", "/readyz"):
        assert time.monotonic() < deadline, chart.made.log("api").read_text(errors="replace")
        time.sleep(0.2)
    chart.execute("api", "omni-jobs", "tenants", "create", "acme")
    key = chart.execute("api", "omni-jobs", "keys", "create", "--tenant", "acme", "--scope", "admin").split()[0]
    words = ["env", f"OMNI_JOBS_API_KEY={key}", "omni-jobs", "submit", "Hello", "--pipeline", "echo", "--wait"]
    assert "Hello" in chart.execute("api", *words)
    services = ("tls", "database", "broker", "storage")
    said = chart.execute("api", "omni-jobs", "doctor", "--json", *(f"--only={each}" for each in services))
    found = json.loads(said)
    assert [each for each in found if each["state"] == "error"] == []
    assert {each["about"] for each in found} >= set(services)
    assert any("API: TLS" in each["message"] for each in found)
    for component in ("worker-echo-first", "worker-echo-second", "rescuer"):
        assert "last beat" in chart.execute(component, "omni-jobs", "healthy")
        assert "NOPERM" not in chart.made.log(component).read_text(errors="replace")
