"""The act of the trial with workers on a further host: a project of its own stands for that host."""

import json
from typing import Any

from tests.compose.client import Json, Load, echo
from tests.compose.deployment import FILES, HOST, block, options
from tests.compose.trial import ECHO_JOBS, Trial, TrialError

PUBLISHED = {"postgres": 5432, "valkey": 6379, "objects": 8333}
STAGES = ("first", "second")
NAME = "further-host"


def further_host(trial: Trial) -> None:
    """The way of docs/operations/several-hosts.md: it reaches the first host's services by published ports alone."""
    first, further = trial.deployment, trial.further
    with trial.step("compose.hosts.yml: workers on a further host") as facts:
        _start(trial)
        facts["containers"] = len(further.containers())
        first.compose("stop", "echo-first", "echo-second")
        hosts = {one["slot"].partition("@")[2] for one in _on(trial, NAME)}
        if hosts != {one.hostname for one in further.containers()}:
            raise TrialError(f"the workers of {NAME} are in {hosts}")
        trial.judge(_echoes(trial).end(), facts)
    with trial.step("the further host emptied by its name, the first goes on") as facts:
        first.compose(*options("published.yml"), "up", "--detach", "--wait", "echo-first", "echo-second")
        _empty(trial, facts)
        first.compose("stop", "echo-first", "echo-second")
    with trial.step("the further host is lost under load") as facts:
        load = _echoes(trial)
        load.wait_until_running("echo", "first")
        further.compose("kill")
        first.compose(*options("published.yml"), "up", "--detach", "--wait", "echo-first", "echo-second")
        trial.judge(load.end(), facts)
    with trial.step("the first host without the published ports", needed=True):
        further.remove(images=False)
        first.compose("up", "--detach")
        trial.wait_until_up()


def _start(trial: Trial) -> None:
    first, further = trial.deployment, trial.further
    address = first.gateway()
    ports = {name: (port, first.engine.free_port()) for name, port in PUBLISHED.items()}
    published = {name: {"ports": [f"{address}:{free}:{port}"]} for name, (port, free) in ports.items()}
    (first.directory / "published.yml").write_text(json.dumps({"services": published}), encoding="utf-8")
    # Not with --wait: the API is unhealthy while its database and object store are made anew, which ends that.
    first.compose(*options("published.yml"), "up", "--detach")
    trial.wait_until_up()
    further.clone()
    further.shell("cp .env.example .env")
    further.configure(
        {},
        COMPOSE_FILE=f"{FILES[0]}:compose.hosts.yml:{FILES[1]}",
        OMNI_JOBS_S3_ENDPOINT_URL=f"http://{address}:{ports['objects'][1]}",
        HOST_NAME=NAME,
    )
    further.take_secrets(first, {name: f"{address}:{free}" for name, (_, free) in ports.items()})
    further.shell(block("several-hosts.md")[1])


def _empty(trial: Trial, facts: dict[str, Any]) -> None:
    """The commands of docs/operations/stop.md, under load: they empty the one host, and touch nothing of the other."""
    drain, resume = (_by_name(trial, line) for line in block("stop.md", "Empty a host"))
    load = _echoes(trial)
    load.wait_until_running("echo", "first")
    drained = json.loads(trial.deployment.shell(f"{drain} --json").stdout)
    facts["drained"] = len(drained)
    there, others = _on(trial, NAME), _on(trial, HOST)
    if {one["slot"] for one in drained} != {one["slot"] for one in there} or len(there) != len(STAGES):
        raise TrialError(f"{[one['slot'] for one in drained]} were drained of {[one['slot'] for one in there]}")
    if busy := [one["slot"] for one in there if one["drained_at"] is None or one["running"]]:
        raise TrialError(f"the command has returned, and these are not empty: {busy}")
    if touched := [one["slot"] for one in others if one["drained_at"] is not None]:
        raise TrialError(f"these of the first host were drained as well: {touched}")
    trial.judge(load.end(), facts)
    there, others = _on(trial, NAME), _on(trial, HOST)
    trial.judge(_echoes(trial).end(), facts)
    if _ended(_on(trial, NAME)) != _ended(there):
        raise TrialError("workers of the host that is empty have run stage runs")
    if sum(map(_completed, _on(trial, HOST))) <= sum(map(_completed, others)):
        raise TrialError("no worker of the first host has run a stage run since")
    trial.deployment.shell(resume)
    if still := [one["slot"] for one in _on(trial, NAME) if one["drained_at"] is not None]:
        raise TrialError(f"these are still drained: {still}")


def _by_name(trial: Trial, line: str) -> str:
    """Return a command of the docs for the further host, run in the API's container with the trial's key."""
    container = f"docker compose exec -T --env OMNI_JOBS_API_KEY={trial.client.key} api"
    if "--host gpu-a" not in line:
        raise TrialError(f"docs/operations/stop.md empties a host by another command: {line}")
    return f"{container} {line.replace('gpu-a', NAME)}"


def _echoes(trial: Trial) -> Load:
    return trial.load([echo(number) for number in range(ECHO_JOBS)])


def _on(trial: Trial, host: str) -> list[Json]:
    return [one for one in trial.client.call("GET", "/v1/status")["workers"] if one["host"] == host]


def _ended(workers: list[Json]) -> dict[str, Json]:
    return {one["slot"]: one["ended"] for one in workers}


def _completed(worker: Json) -> int:
    return int(worker["ended"].get("completed", 0))
