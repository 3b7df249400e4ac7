"""What is done to a deployment, step by step, and what has to hold after each."""

import contextlib
import json
import re
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.compose.chat_server import ChatServer
from tests.compose.client import (
    SIDE,
    Client,
    ClientError,
    Json,
    Load,
    Outcome,
    asked,
    echo,
    enlargement,
    png,
    speech,
    transcription,
)  # fmt: skip
from tests.compose.debian import DebianError
from tests.compose.deployment import FILES, LOOK_S, Deployment, Watch, block, options
from tests.compose.engine import EngineError

PROFILES = ("echo", "speech", "transcribe", "upscale", "remote")
BUILT = ("api", "worker-cpu-image")
HEALTHY_S = 180.0
ECHO_JOBS = 30
# Each stage of the profiles, and the container's program that runs it.
STAGES = {
    "echo-first": ("echo", "first"),
    "echo-second": ("echo", "second"),
    "speech-acoustic": ("speech", "acoustic"),
    "speech-vocoder": ("speech", "vocoder"),
    "transcribe-listen": ("transcribe", "listen"),
    "upscale-enlarge": ("upscale", "enlarge"),
    "remote-ask": ("remote", "ask"),
}
SERVICES = ("api", "rescuer", "valkey", "postgres", "objects")
# What Compose has to refuse the lack of, and the options with which it does.
REQUIRED = {
    "COMPOSE_PROFILES": [],
    "HOST_NAME": options("compose.hosts.yml"),
    "OMNI_JOBS_S3_ENDPOINT_URL": options("compose.hosts.yml"),
    "TLS_DIR": options("compose.tls.yml"),
}


class TrialError(Exception):
    """What did not hold."""


FAULTS = (TrialError, ClientError, EngineError, DebianError)


@dataclass
class Step:
    """A step of the trial, and what came of it."""

    name: str
    seconds: float = 0.0
    error: str | None = None
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass
class Trial:
    """The steps so far. ``say`` is told of each as it ends."""

    deployment: Deployment
    further: Deployment  # workers on another host
    say: Callable[[str], None]
    steps: list[Step] = field(default_factory=list)
    started: list[dict[str, Any]] = field(default_factory=list)  # the first start of each service
    loads: list[Load] = field(default_factory=list)
    client: Client = field(default_factory=lambda: Client("", ""))
    server: ChatServer = field(default_factory=ChatServer)
    sound: bytes = b""

    @contextlib.contextmanager
    def step(self, name: str, *, needed: bool = False) -> Iterator[dict[str, Any]]:
        """Run one step: gives its facts. A step that fails is kept, and ends the trial only where it is needed."""
        step = Step(name)
        began = time.monotonic()
        try:
            yield step.facts
        except FAULTS as error:
            step.error = f"{type(error).__name__}: {error}"
            if needed:
                raise
        finally:
            step.seconds = time.monotonic() - began
            self.steps.append(step)
            facts = ", ".join(f"{name} {value}" for name, value in step.facts.items())
            self.say(f"{'FAILED' if step.error else 'held':6}  {step.seconds:6.1f} s  {name}  {facts}")
            if step.error:
                self.say(f"        {step.error}")

    def fail(self, name: str, error: Exception) -> None:
        """Keep an error that no step has kept, so that the report is not one of success."""
        self.steps.append(Step(name, error=f"{type(error).__name__}: {error}"))
        self.say(f"FAILED  {name}\n        {self.steps[-1].error}")

    # Loads.

    def load(self, bodies: list[Json]) -> Load:
        self.loads.append(load := Load(self.client, bodies))
        return load

    @property
    def submitted(self) -> int:
        """The number of jobs so far."""
        return sum(len(load.ids) for load in self.loads)

    def _mixed(self, echoes: int = ECHO_JOBS) -> list[Json]:
        picture = enlargement(png(SIDE, SIDE))
        light = [echo(number) for number in range(echoes)] + [asked(number) for number in range(3)]
        return light + 3 * [speech(8)] + 2 * [transcription(self.sound), picture]

    def judge(self, outcome: Outcome, facts: dict[str, Any]) -> None:
        facts |= {
            "jobs": outcome.submitted, "lost": outcome.lost, "doubled": outcome.doubled, "wrong": outcome.wrong,
            "repeated": outcome.repeated, "all_ended_after_s": round(outcome.seconds, 1),
        }  # fmt: skip
        if outcome.errors:
            facts["calls_repeated"] = dict(outcome.errors)
        if not outcome.held:
            raise TrialError("; ".join(outcome.faults[:5]) or "jobs were lost or doubled")

    def wait_until_up(self) -> None:
        """Wait until all containers are up."""
        until = time.monotonic() + HEALTHY_S
        while down := [one for one in self.deployment.containers() if not (one.up or one.short)]:
            if time.monotonic() > until:
                states = ", ".join(f"{one.service} {one.status} {one.health}" for one in down)
                raise TrialError(f"not up after {HEALTHY_S:.0f} s: {states}")
            time.sleep(0.5)

    # Steps.

    def start(self) -> None:
        """The newcomer's way: the commands of docs/operations/compose.md, up to a key that works."""
        up, tenant, key = commands_to_start()
        with self.step("start of all services", needed=True) as facts:
            began = datetime.now(UTC)
            with Watch(self.deployment) as watch:
                self.deployment.shell(up)
                time.sleep(2 * LOOK_S)
            for one in self.deployment.containers():
                self.started.append({
                    "service": one.service,
                    "started_after_s": round((one.started_at - began).total_seconds(), 1),
                    "ready_after_s": round(watch.seconds[one.service], 1),
                })  # fmt: skip
            facts["containers"] = len(self.started)
        with self.step("a key, as the docs say", needed=True):
            self.deployment.shell(tenant)
            words = self.deployment.shell(key).stdout.split()
            self.client = Client(f"http://127.0.0.1:{self.deployment.port}", words[0])
            self.client.call("GET", "/v1/status")

    def first_jobs(self) -> None:
        """Jobs of every pipeline."""
        with self.step("echo jobs", needed=True) as facts:
            self.judge(self.load([echo(number, 0.0) for number in range(50)]).end(), facts)
        with self.step("questions to the server that is there already") as facts:
            self.judge(self.load([asked(number) for number in range(10)]).end(), facts)
        with self.step("speech, said", needed=True) as facts:
            load = self.load([speech()])
            self.judge(load.end(), facts)
            artifact = self.client.call("GET", f"/v1/jobs/{load.ids[0]}")["artifacts"][0]["name"]
            self.sound = self.client.raw("GET", f"/v1/jobs/{load.ids[0]}/artifacts/{artifact}")
            facts["bytes"] = len(self.sound)
        with self.step("the same speech, written down again") as facts:
            self.judge(self.load([transcription(self.sound)]).end(), facts)
        with self.step("a picture, enlarged") as facts:
            self.judge(self.load([enlargement(png(SIDE, SIDE))]).end(), facts)

    def kills(self) -> None:
        """Each service is killed while jobs run in it, and comes back by itself."""
        for service in (*STAGES, *SERVICES):
            with self.step(f"{service} killed") as facts:
                load = self.load(self._mixed())
                load.wait_until_running(*STAGES.get(service, ("echo", "first")))
                before = self.deployment.kill(service)
                with Watch(self.deployment, {service: before.restarts}) as watch:
                    outcome = load.end()
                    until = time.monotonic() + HEALTHY_S
                    while service not in watch.seconds and time.monotonic() < until:
                        time.sleep(LOOK_S)
                if service not in watch.seconds:
                    raise TrialError(f"not up again after {HEALTHY_S:.0f} s")
                facts["up_again_after_s"] = round(watch.seconds[service], 1)
                self.judge(outcome, facts)

    def restarts(self) -> None:
        """All services are restarted under load."""
        with self.step("docker compose restart of everything") as facts:
            load = self.load(self._mixed())
            load.wait_until_running("echo", "first")
            began = time.monotonic()
            self.deployment.compose("restart")
            facts["restart_s"] = round(time.monotonic() - began, 1)
            self.wait_until_up()
            self.judge(load.end(), facts)

    def scales(self) -> None:
        """A stage gets three workers, one of them is drained and stopped, and then the others are."""
        with self.step("echo-first scaled to three workers") as facts:
            self.deployment.compose("up", "--detach", "--wait", "--scale", "echo-first=3")
            slots = {one["slot"] for one in self.client.workers("echo", "first")}
            hosts = {one.hostname for one in self.deployment.containers("echo-first")}
            if slots != {f"echo.first-1@{host}" for host in hosts} or len(slots) != 3:
                raise TrialError(f"the slots are {slots}, the containers {hosts}")
            self.judge(self.load(self._mixed(60)).end(), facts)
        with self.step("a worker drained, then stopped") as facts:
            leaving = self.deployment.containers("echo-first")[-1]
            slot = f"echo.first-1@{leaving.hostname}"
            load = self.load(self._mixed(60))
            load.wait_until_running("echo", "first")
            drain = (
                f"docker compose exec -T --env OMNI_JOBS_API_KEY={self.client.key} api omni-jobs workers drain {slot}"
            )
            self.deployment.shell(drain)
            self.judge(load.end(), facts)
            (worker,) = (one for one in self.client.workers("echo", "first") if one["slot"] == slot)
            if worker["drained_at"] is None or worker["running"]:
                raise TrialError(f"the drained worker is {worker}")
            before = worker["ended"]
            self.judge(self.load(self._mixed(60)).end(), facts)
            (worker,) = (one for one in self.client.workers("echo", "first") if one["slot"] == slot)
            if worker["ended"] != before:
                raise TrialError(f"the drained worker ran stage runs: {before}, then {worker['ended']}")
            self.deployment.engine.run(["docker", "stop", leaving.name], self.deployment.directory)
            self._stopped([leaving.name], facts)
        with self.step("a worker stopped under load") as facts:
            load = self.load([echo(number, 14.0) for number in range(20)])
            load.wait_until_running("echo", "first")
            self.deployment.compose("stop", "echo-first")
            names = [one.name for one in self.deployment.containers("echo-first")]
            self._stopped(names, facts)
            self.deployment.compose("up", "--detach", "--wait", "--scale", "echo-first=1")
            self.judge(load.end(), facts)

    def _stopped(self, names: list[str], facts: dict[str, Any]) -> None:
        """Containers have ended by themselves: after their grace, Docker would have killed them (137)."""
        found = [one for one in self.deployment.containers() if one.name in names]
        facts["exit_codes"] = sorted({one.exit_code for one in found})
        late = [
            f"{one.name}: {one.status}, {one.exit_code}"
            for one in found
            if one.status != "exited" or one.exit_code == 137
        ]
        if late:
            raise TrialError(f"not ended within stop_grace_period: {late}")

    def proxy(self) -> None:
        """The API by https, through the proxy of docs/operations/proxy.md, and by nothing else."""
        deployment, plain = self.deployment, self.client
        files = options("compose.tls.yml")
        with self.step("compose.tls.yml: jobs by https") as facts:
            authority = deployment.make_certificate()
            try:
                deployment.compose(*files, "up", "--detach", "--wait", "api", "proxy")
            except EngineError as error:
                said = deployment.compose(*files, "logs", "--no-color", "proxy", check=False).stdout
                raise EngineError(f"{error}\n{said[-2000:]}") from error
            self.client = Client(f"https://127.0.0.1:{deployment.tls_port}", plain.key, authority)
            self.judge(self.load([speech(), *map(echo, range(ECHO_JOBS))]).end(), facts)
            if "strict-transport-security" not in self.client.headers("/healthz"):
                raise TrialError("the API does not believe the proxy that its clients come by https")
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", deployment.port), 2):
                raise TrialError("the plain port is still published")
        with self.step("a renewed certificate, taken by the docs' command") as facts:
            authority = deployment.make_certificate()
            deployment.shell(f"COMPOSE_FILE={':'.join([*FILES, 'compose.tls.yml'])} {block('proxy.md')[0]}")
            self.client = Client(self.client.url, plain.key, authority)
            self.judge(self.load([*map(echo, range(3))]).end(), facts)
        self.client = plain
        with self.step("the API without the proxy", needed=True):
            deployment.compose(*files, "rm", "--stop", "--force", "proxy")
            deployment.compose("up", "--detach", "--wait", "api")

    def backup(self) -> None:
        """The commands of docs/operations/backup.md: a backup, an empty host, a restore."""
        with self.step("backup") as facts:
            load = self.load(self._mixed())
            load.wait_until_running("echo", "second")
            for line in commands_to_back_up():
                self.deployment.shell(line)
            self.wait_until_up()
            self.judge(load.end(), facts)
            for name in ("jobs.dump", "objects.tar"):
                facts[f"{name}_bytes"] = (self.deployment.directory / name).stat().st_size
        with self.step("restore into empty volumes") as facts:
            # What the backup has: jobs that were under way then are under way again.
            (job,) = self.client.jobs(pipeline="speech")[-1:]
            path = f"/v1/jobs/{job['id']}/artifacts/{job['artifacts'][0]['name']}"
            before, sound = {one["id"] for one in self.client.jobs()}, self.client.raw("GET", path)
            self.deployment.compose("down", "--volumes")
            for line in block("backup.md", "Restore"):
                self.deployment.shell(line)
            self.wait_until_up()
            after = {one["id"] for one in self.client.jobs()}
            facts["jobs_kept"] = len(after)
            if after != before:
                raise TrialError(f"{len(before - after)} jobs are gone, {len(after - before)} are new")
            if self.client.raw("GET", path) != sound:
                raise TrialError("an artifact has other bytes")
            until = time.monotonic() + HEALTHY_S
            while (open_ := self._open()) and time.monotonic() < until:
                time.sleep(0.5)
            if open_ or len(self.client.jobs(status="completed")) != self.submitted:
                raise TrialError(f"{open_} jobs have not ended; {self.client.jobs(status='failed')[:2]}")
            self.judge(self.load(self._mixed()).end(), facts)

    def _open(self) -> int:
        return sum(len(self.client.jobs(status=status)) for status in ("queued", "in_progress"))

    def stops(self) -> None:
        """All jobs are there once, and everything stops under load within its grace."""
        with self.step("every job of the trial completed, once") as facts:
            jobs = self.client.jobs()
            facts["jobs"] = len(jobs)
            other = [job["id"] for job in jobs if job["status"] != "completed"]
            if len(jobs) != self.submitted or other:
                raise TrialError(
                    f"{self.submitted} were submitted, {len(jobs)} are there, not completed are {other[:5]}"
                )
        with self.step("docker compose stop under load") as facts:
            load = self.load([echo(number, 14.0) for number in range(20)])
            load.wait_until_running("echo", "first")
            before = datetime.now(UTC)
            self.deployment.compose("stop")
            found = [one for one in self.deployment.containers() if not one.short]
            took = {one.service: round((one.finished_at - before).total_seconds(), 1) for one in found}
            facts["seconds"] = took
            self._stopped([one.name for one in found], facts)
        with self.step("started again, nothing lost") as facts:
            self.deployment.shell("docker compose up --detach --wait")
            self.judge(load.end(), facts)

    def files(self) -> None:
        """Compose understands the files with the profiles of every pipeline, and the overrides that the docs show."""
        with self.step("docker compose config of every profile") as facts:
            services = self.deployment.configuration()["services"]
            profiles = sorted({name for one in services.values() for name in one.get("profiles", [])})
            for profile in profiles:
                self.deployment.compose("--profile", profile, "config", "--quiet")
            facts["profiles"] = len(profiles)
        for path in sorted(self.deployment.directory.glob("compose.*.yml")):
            with self.step(f"docker compose config with {path.name}") as facts:
                found = self.deployment.configuration("--file", "docker-compose.yml", "--file", path.name)
                facts["services"] = len(found["services"])
                left = [name for name, service in found["services"].items() if service.get("runtime")]
                if path.name in {"compose.cdi.yml", "compose.cpu.yml"} and left:
                    raise TrialError(f"these still ask for NVIDIA's runtime: {', '.join(left)}")
        for path in sorted((self.deployment.directory / "deploy" / "cards").glob("*.env")):
            with self.step(f"docker compose config with {path.name}"):
                self._cards(path)
        for name, words in REQUIRED.items():
            with self.step(f"docker compose config without {name}"):
                line = f"{name}= docker compose {' '.join(words)} config --quiet"
                refused = self.deployment.shell(line, check=False)
                if refused.returncode == 0 or f"required variable {name} is missing" not in refused.stderr:
                    raise TrialError(f"it ends with {refused.returncode}: {refused.stderr[-500:]}")
        for page in ("compose.md", "several-hosts.md", "gpus.md"):
            with self.step(f"overrides of {page}") as facts:
                facts["overrides"] = self._overrides(page)

    def _cards(self, path: Path) -> None:
        """Compose gives the services each card and each share of a file of deploy/cards. Raises TrialError."""
        given = dict(re.findall(r"(?m)^(\w+)=(.*)$", path.read_text("utf-8")))
        relative = str(path.relative_to(self.deployment.directory))
        found = self.deployment.configuration("--env-file", ".env", "--env-file", relative)["services"]
        for service, one in found.items():
            name = f"{service.upper().replace('-', '_')}_GPU"
            expected = {"NVIDIA_VISIBLE_DEVICES": given.get(name)}
            expected["OMNI_JOBS_GPU_MEMORY_UTILIZATION"] = given.get(f"{name}_MEMORY")
            for variable, value in expected.items():
                if value is not None and one["environment"].get(variable) != value:
                    raise TrialError(f"{service} has {variable} {one['environment'].get(variable)}, not {value}")

    def _overrides(self, page: str) -> int:
        text = (self.deployment.directory / "docs" / "operations" / page).read_text("utf-8")
        found = re.findall(r"(?ms)^```yaml\n(services:\n.*?)^```", text)
        override = self.deployment.directory / "shown.yml"
        for shown in found:
            override.write_text(shown, encoding="utf-8")
            self.deployment.configuration("--file", "docker-compose.yml", "--file", override.name)
        override.unlink(missing_ok=True)
        return len(found)


def commands_to_start() -> list[str]:
    """Return the lines of docs/operations/compose.md after those that the trial does in its own way. Raises TrialError.

    Its .env is filled in, and its images are built one by one, before the network of containers is there.
    """
    lines = block("compose.md")
    own = ["cp .env.example .env", "scripts/secrets", "docker compose --profile images build"]
    if lines[:3] != own or len(lines) != 6:
        raise TrialError(f"docs/operations/compose.md begins with other commands than the trial knows: {lines}")
    return lines[3:]


def commands_to_back_up() -> list[str]:
    """Return the lines of docs/operations/backup.md for the workers of the trial's profiles. Raises TrialError."""
    lines = block("backup.md")
    ours = lines[0].replace("thinker talker code2wav", " ".join(STAGES))
    if ours == lines[0]:
        raise TrialError(f"docs/operations/backup.md stops other workers than the trial knows: {lines[0]}")
    return [ours, *lines[1:]]


def report(trial: Trial, engine: str, images: dict[str, int], seconds: float) -> dict[str, Any]:
    """Return what was measured, for ``--json``."""
    return {
        "engine": engine,
        "seconds": round(seconds, 1),
        "held": all(step.error is None for step in trial.steps),
        "jobs": trial.submitted,
        "steps": [vars(step) | {"seconds": round(step.seconds, 1)} for step in trial.steps],
        "start_up": sorted(trial.started, key=lambda one: one["started_after_s"]),
        "image_bytes": images,
    }


def table(found: dict[str, Any]) -> str:
    """Return the report as lines of text."""
    lines = ["", f"{'service':24}{'started after':>16}{'ready after':>14}"]
    for one in found["start_up"]:
        lines.append(f"{one['service']:24}{one['started_after_s']:>14.1f} s{one['ready_after_s']:>12.1f} s")
    lines += ["", f"{'image':40}{'size':>10}"]
    lines += [f"{name:40}{size / 1e6:>7.0f} MB" for name, size in found["image_bytes"].items()]
    failed = [step["name"] for step in found["steps"] if step["error"]]
    verdict = f"FAILED: {', '.join(failed)}" if failed else "All held."
    lines += [
        "",
        f"{found['engine']}: {len(found['steps'])} steps, {found['jobs']} jobs in {found['seconds']:.0f} s. {verdict}",
    ]
    return "\n".join(lines)


def dumped(found: dict[str, Any]) -> str:
    """Return the report as JSON."""
    return json.dumps(found, indent=1, default=str)
