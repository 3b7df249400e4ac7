"""Every service's own command of docker-compose.yml, in its own environment, as its user, on a read-only file system.

Also what docs/operations/ runs in the containers. Only the checkpoint is missing: a worker has to get as far as that
error.
"""

import json
import re
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.packaging.compose_file import REMOTE
from tests.packaging.containers import MOUNTS, Containers, containers_with_services, read_services

SERVICES = read_services()
WAIT_S = 60.0
GATEWAY = "host.docker.internal"
LISTENS = "import socket; socket.create_connection(('postgres', 5432))"


@pytest.fixture(scope="module")
def containers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Containers]:
    """With PostgreSQL, Valkey and SeaweedFS, which run; nothing of ours does."""
    with containers_with_services(tmp_path_factory.mktemp("compose"), SERVICES, [*SERVICES, GATEWAY]) as made:
        yield made


def until(containers: Containers, name: str, words: list[str]) -> None:
    """Wait until a check of a running service says yes."""
    until_it_answers(containers, name, SERVICES[name], words)


def until_it_answers(containers: Containers, name: str, service: dict[str, Any], words: list[str]) -> None:
    deadline = time.monotonic() + WAIT_S
    while (found := containers.execute(name, service, words)).returncode != 0:
        log = containers.log(name).read_text(errors="replace")
        assert time.monotonic() < deadline, found.stdout + found.stderr + log
        time.sleep(0.2)


def check_of(name: str) -> list[str]:
    """The command of a service's health check."""
    kind, *words = SERVICES[name]["healthcheck"]["test"]
    words = [word.replace("$$", "$") for word in words]
    return ["sh", "-c", *words] if kind == "CMD-SHELL" else words


@pytest.fixture(scope="module")
def prepared(containers: Containers) -> Containers:
    """After `bucket` and `migrate`, which start in any order with the services that they need."""
    until(containers, "postgres", ["python", "-c", LISTENS])
    for name in ("bucket", "migrate", "bucket", "migrate"):  # each `up` runs them again
        code, output = containers.run(name, SERVICES[name], SERVICES[name]["command"])
        assert code == 0, f"{name}: {output}"
    return containers


def test_a_container_can_write_nowhere_but_in_tmp(containers: Containers) -> None:
    """Else the tests below would prove nothing."""
    write = "id -u; touch /tmp/x && echo tmp; touch $HOME/x; touch /var/tmp/x"
    code, output = containers.run("probe", SERVICES["migrate"], ["sh", "-c", write])
    assert code != 0
    assert output.splitlines()[:2] == ["10001", "tmp"]
    assert output.count("Read-only file system") == 2, output


def test_the_object_store_listens_for_keys_alone(prepared: Containers) -> None:
    """Its parts behind the S3 server ask for none: they are on the loopback, where no other container is."""
    listening = prepared.execute("objects", SERVICES["objects"], ["cat", "/proc/net/tcp", "/proc/net/tcp6"]).stdout
    ends = re.findall(r"(?m)^ *\d+: ([0-9A-F]+):([0-9A-F]{4}) \S+ 0A", listening)
    addresses = {int(port, 16): address for address, port in ends}
    assert {8888, 9333, 8080} <= set(addresses)
    loopback = {"0100007F", "00000000000000000000000001000000", "0000000000000000FFFF00000100007F"}
    own = {5432, 6379, 8000}  # of the other services, which share this network here
    outside = {port for port, address in addresses.items() if address not in loopback} - own
    assert {8333} <= outside <= {8333, 18333}, addresses


def test_the_object_store_takes_no_room_in_advance(prepared: Containers) -> None:
    used = prepared.execute("objects", SERVICES["objects"], ["du", "-sm", f"{MOUNTS}/data/objects"]).stdout
    assert int(used.split()[0]) < 200


def test_api_and_rescuer_turn_healthy_and_the_first_key_works(prepared: Containers) -> None:
    for name in ("api", "rescuer"):
        command = SERVICES[name].get("command", ["omni-jobs", "api"])  # the image's CMD
        prepared.start(name, SERVICES[name], command)
    for name in ("api", "rescuer"):
        until(prepared, name, check_of(name))

    def omni_jobs(*words: str) -> str:
        done = prepared.execute("api", SERVICES["api"], ["omni-jobs", *words])
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    omni_jobs("tenants", "create", "acme")
    key = omni_jobs("keys", "create", "--tenant", "acme", "--scope", "admin").split()[0]
    status = prepared.execute(
        "api", SERVICES["api"], ["env", f"OMNI_JOBS_API_KEY={key}", "omni-jobs", "status", "--json"]
    )
    assert status.returncode == 0, status.stdout + status.stderr
    assert json.loads(status.stdout)["jobs"] == []
    refused = prepared.execute("api", SERVICES["api"], ["omni-jobs", "status", "--json"])
    assert refused.returncode != 0, "the API asks for keys"
    services = ("database", "versions", "broker", "storage")
    found = json.loads(omni_jobs("doctor", "--json", *(f"--only={each}" for each in services if each != "versions")))
    assert [(each["about"], each["state"]) for each in found] == [(each, "ok") for each in services]


def workers(*images: str) -> list[str]:
    """The first worker of each pipeline and image: tests/packaging/test_compose_workers.py checks the words of all."""
    of = [(each["profiles"][0], each["image"], name) for name, each in SERVICES.items() if "profiles" in each]
    firsts = {(pipeline, image): name for pipeline, image, name in reversed(of) if pipeline != "images"}
    return sorted(name for (pipeline, image), name in firsts.items() if image in images and pipeline != "remote")


@pytest.mark.parametrize("name", workers("omni-jobs-worker"))
def test_a_worker_gets_as_far_as_its_checkpoint(prepared: Containers, name: str) -> None:
    """It has taken its slot in the database, reached broker and object store, and has no model to load here."""
    code, output = prepared.run(name, SERVICES[name], SERVICES[name]["command"])
    assert code != 0
    assert "Read-only file system" not in output
    assert "the slot is taken" in output
    (pipeline,) = SERVICES[name]["profiles"]
    assert f"{MOUNTS}/models/{pipeline}: no such checkpoint directory" in output


@pytest.mark.parametrize("name", workers("omni-jobs-worker-cpu", "omni-jobs-api"))
def test_a_worker_without_a_gpu_serves(prepared: Containers, name: str) -> None:
    """Its model, if it has any, is in its image."""
    process = prepared.start(name, SERVICES[name], SERVICES[name]["command"])
    try:
        assert "Read-only file system" not in until_it_serves(prepared, name, process)
    finally:
        process.terminate()
        process.wait(WAIT_S)


def until_it_serves(containers: Containers, name: str, process: subprocess.Popen[bytes]) -> str:
    """Wait until a worker serves its stage, and return its log so far."""
    pipeline, stage = SERVICES[name]["command"][3], SERVICES[name]["command"][5]
    served = re.compile(rf"serves {pipeline}@[^ ]+\.{stage} with")
    deadline = time.monotonic() + WAIT_S
    while not served.search(log := containers.log(name).read_text(errors="replace")):
        assert process.poll() is None, log
        assert time.monotonic() < deadline, log
        time.sleep(0.1)
    return log


MODELS_SERVER = """
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        refused = self.headers["Authorization"] != "Bearer " + open(sys.argv[1]).read().strip()
        self.send_response(401 if refused else 200)
        self.end_headers()
        self.wfile.write(b'{"data": []}')
http.server.HTTPServer(("127.0.0.1", 8001), Handler).serve_forever()
"""


@pytest.mark.parametrize("key", ["remote_key", "another_key"])
def test_the_profile_remote_comes_to_its_server_with_the_key(prepared: Containers, key: str) -> None:
    """And ends with an error where the server refuses it. The pipeline is the file that the docs copy."""
    configs = prepared.file("configs")
    configs.mkdir(exist_ok=True)
    (configs / REMOTE.name).write_text(REMOTE.read_text())
    prepared.file("another_key").write_text("another\n")
    listens = "import socket; socket.create_connection(('127.0.0.1', 8001))"
    expected = f"{MOUNTS}/{'secrets/' if key == 'remote_key' else ''}{key}"
    service = SERVICES["remote-ask"]
    of_server = {**service, "environment": {}}
    server = prepared.start("server", of_server, ["python", "-c", MODELS_SERVER, expected])
    environment = service["environment"] | {"OMNI_JOBS_STAGE_CONFIGS": f"{MOUNTS}/configs"}
    try:
        until_it_answers(prepared, "server", of_server, ["python", "-c", listens])
        process = prepared.start("remote-ask", {**service, "environment": environment}, service["command"])
        try:
            if key == "remote_key":
                assert "jobs wait for it" not in until_it_serves(prepared, "remote-ask", process)
            else:
                assert process.wait(WAIT_S) != 0
                log = prepared.log("remote-ask").read_text(errors="replace")
                assert "the server answers 401 to the key of OMNI_JOBS_SERVERS" in log
        finally:
            process.terminate()
            process.wait(WAIT_S)
    finally:
        server.kill()
        server.wait()
