"""One deployment as a newcomer makes it: a clone, .env, secrets, a key, and the commands of the docs, word for word."""

import json
import os
import re
import resource
import shutil
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Self

from tests.compose.engine import Engine, EngineError

ROOT = Path(__file__).resolve().parents[2]
PROJECT = "omni-jobs-compose-test"
FURTHER = f"{PROJECT}-further"  # its workers on another host
FILES = ("docker-compose.yml", "docker-compose.override.yml")
TORCH = ("compose.cpu.yml", "torch.override.yml")
TAG = "compose-test"
HOST = "first-host"  # the name of the host whose workers have no other
MOST_FILES = 65536
LOOK_S = 0.5


@dataclass(frozen=True)
class Container:
    """A container of the project, as ``docker inspect`` tells."""

    name: str
    service: str
    hostname: str
    status: str
    health: str  # healthy, unhealthy, starting; empty without a check
    exit_code: int
    restarts: int
    pid: int
    started_at: datetime
    finished_at: datetime

    @property
    def short(self) -> bool:
        """Whether it is one that does its work and ends."""
        return self.service in {"bucket", "migrate"}

    @property
    def up(self) -> bool:
        """Whether it runs and, where it has a check, is healthy; or has done its work."""
        if self.short:
            return self.status == "exited" and self.exit_code == 0
        return self.status == "running" and self.health in {"", "healthy"}


def moment(text: str) -> datetime:
    """Return the time of Docker's RFC 3339 text, which has nanoseconds and any zone."""
    cut = re.sub(r"(\.\d{6})\d+", r"\1", text)
    return datetime.fromisoformat(cut)


def container(found: Mapping[str, Any]) -> Container:
    """Read one object of ``docker inspect``."""
    state, settings = found["State"], found["Config"]
    health = state.get("Health") or {"Status": ""}
    return Container(
        name=found["Name"].lstrip("/"),
        service=settings["Labels"]["com.docker.compose.service"],
        hostname=settings["Hostname"],
        status=state["Status"],
        health=health["Status"],
        exit_code=state["ExitCode"],
        restarts=found["RestartCount"],
        pid=state["Pid"],
        started_at=moment(state["StartedAt"]),
        finished_at=moment(state["FinishedAt"]),
    )


def block(page: str, heading: str | None = None) -> list[str]:
    """Return the command lines of the first block of bash of a page of docs/operations, or of one of its sections."""
    text = (ROOT / "docs" / "operations" / page).read_text("utf-8")
    if heading is not None:
        text = text.partition(f"\n## {heading}\n")[2]
    found = re.search(r"(?ms)^```bash\n(.*?)^```", text)
    if found is None:
        raise EngineError(f"docs/operations/{page} has no block of commands under {heading or 'its title'}")
    return [re.sub(r"\s+# .*", "", line) for line in found[1].splitlines() if line]


def options(*files: str) -> list[str]:
    """Return Compose's options for the clone's own files, and others over them."""
    return [word for name in (*FILES, *files) for word in ("--file", name)]


class Deployment:
    """A clone of the tree in ``directory`` whose profiles run on an engine, as ``project``."""

    def __init__(self, engine: Engine, directory: Path, profiles: Sequence[str], project: str = PROJECT) -> None:
        self.engine, self.directory, self.profiles, self.project = engine, directory, profiles, project
        self.port = self.prometheus_port = self.tls_port = self.remote_port = 0

    def clone(self) -> None:
        """Copy what git knows, or would take: neither the caller's .env and secrets nor what was built."""
        words = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        listed = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout
        shutil.rmtree(self.directory, ignore_errors=True)
        for name in filter(None, listed.split("\0")):
            if (source := ROOT / name).is_file():
                (target := self.directory / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, target)

    def configure(self, build_arguments: Mapping[str, str], **more: str) -> None:
        """Fill in .env, with ``more`` variables, and write the override of what a host of tests lacks.

        It has no registry and perhaps another index and other deployments, so images are built by other arguments and
        have a tag of their own. A nested daemon may not raise its limit of files. Each process shows its metrics.
        """
        self.port, self.prometheus_port, self.tls_port, self.remote_port = (self.engine.free_port() for _ in range(4))
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        given = {
            "COMPOSE_PROJECT_NAME": self.project,
            "COMPOSE_PROFILES": ",".join(self.profiles),
            "API_PORT": str(self.port),
            "PROMETHEUS_PORT": str(self.prometheus_port),
            "TLS_PORT": str(self.tls_port),
            "TLS_DIR": str(self._tls),
            "REMOTE_URL": f"http://host.docker.internal:{self.remote_port}/v1",
            "TORCH_CPU_INDEX_URL": os.environ.get("TORCH_CPU_INDEX_URL", ""),
            "OMNI_JOBS_S3_ENDPOINT_URL": "http://objects:8333",  # as it is by default; compose.hosts.yml asks for it
            "HOST_NAME": HOST,  # the same
            "OMNI_JOBS_METRICS_PORT": "9400",
            "OMNI_JOBS_METRICS_HOST": "0.0.0.0",
            "NOFILE": str(MOST_FILES if files == resource.RLIM_INFINITY else min(files, MOST_FILES)),
            **more,
        }
        env = self.directory / ".env"
        text = env.read_text("utf-8")
        for name, value in given.items():
            text, count = re.subn(rf"(?m)^#?{name}=.*$", f"{name}={value}", text, count=1)
            text += "" if count else f"{name}={value}\n"
        env.write_text(text, encoding="utf-8")
        build = {"args": dict(build_arguments), "network": self.engine.build_network}
        self._override(FILES[1], build, "--file", FILES[0])

    def configure_torch(self, wheels: Path) -> None:
        """Write the same override for compose.cpu.yml, whose image takes wheels from a directory as well."""
        build = {"additional_contexts": {"wheels": str(wheels)}}
        self._override(TORCH[1], build, *options(TORCH[0]))

    def _override(self, name: str, build: Mapping[str, Any], *files: str) -> None:
        services: dict[str, Any] = {}
        for each, service in self.configuration(*files)["services"].items():
            image = service["image"]
            if image.startswith("omni-jobs-") and not image.endswith(f":{TAG}"):
                services[each] = {"image": f"{image}:{TAG}"} | ({"build": build} if "build" in service else {})
        (self.directory / name).write_text(json.dumps({"services": services}, indent=1), encoding="utf-8")

    @property
    def _models(self) -> Path:
        return self.directory / "models"  # where MODELS_DIR is by default

    def make_checkpoint(self, pipeline: str, builder: str) -> None:
        """Make a checkpoint where the pipeline's workers look for it, by their image.

        ``builder``: an import, of the image's code or of the clone's tests, of what fills a directory as ``build``.
        """
        program = f"from pathlib import Path; {builder}; build(Path('/models/{pipeline}'))"
        words = ["docker", "run", "--rm", "--user=0", "--network=none", f"--volume={self._models}:/models"]
        words += [f"--volume={self.directory / 'tests'}:/clone/tests:ro", "--env=PYTHONPATH=/clone"]
        words += [f"omni-jobs-worker-cpu-torch:{TAG}", "python", "-c", program]
        self.engine.run(words, self.directory)
        for path in (self._models / pipeline).rglob("*"):
            path.chmod(0o755 if path.is_dir() else 0o644)  # the workers' user is another

    @property
    def _tls(self) -> Path:
        return self.directory.with_name("tls")

    def make_certificate(self) -> Path:
        """Make a new key and a certificate for the proxy, signed by itself. Returns the authority to trust."""
        self._tls.mkdir(exist_ok=True)
        certificate, key = self._tls / "certificate.pem", self._tls / "key.pem"
        words = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-noenc"]
        words += ["-days=2", "-subj=/CN=omni-jobs", "-addext=subjectAltName=IP:127.0.0.1"]
        words += [f"-keyout={key}", f"-out={certificate}"]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise EngineError(f"no certificate can be made: {done.stderr[-1000:]}")
        key.chmod(0o600)
        return certificate

    def take_secrets(self, other: "Deployment", addresses: Mapping[str, str]) -> None:
        """Take another host's secrets, and reach its services by these addresses."""
        (mine := self.directory / "secrets").mkdir(mode=0o700)
        for path in (other.directory / "secrets").iterdir():
            text = path.read_text("utf-8")
            for service, address in addresses.items():
                text = re.sub(rf"@{service}:\d+", f"@{address}", text)
            (mine / path.name).write_text(text, encoding="utf-8")
            (mine / path.name).chmod(0o444)

    def configuration(self, *words: str) -> dict[str, Any]:
        """Return what Compose makes of the files, with the services of all profiles."""
        found = self.compose(*words, "--profile", "*", "config", "--format", "json")
        return dict(json.loads(found.stdout))

    def shell(self, line: str, *, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a command line of the docs in the clone."""
        return self.engine.run(["bash", "-euo", "pipefail", "-c", line], self.directory, check=check)

    def compose(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run ``docker compose`` in the clone."""
        return self.engine.run(["docker", "compose", *words], self.directory, check=check)

    def containers(self, *services: str) -> list[Container]:
        """Return the project's containers, also those that have ended."""
        label = f"label=com.docker.compose.project={self.project}"
        words = ["docker", "ps", "--all", "--quiet", "--filter", label]
        if not (ids := self.engine.run(words, self.directory).stdout.split()):
            return []
        # One that is gone since then makes it fail, and is left out.
        inspected = json.loads(self.engine.run(["docker", "inspect", *ids], self.directory, check=False).stdout)
        found = sorted((container(one) for one in inspected), key=lambda one: one.name)
        return [one for one in found if not services or one.service in services]

    def kill(self, service: str) -> Container:
        """Kill the program of a service's container from outside, as the kernel does where memory lacks.

        It is the child of the container's init. ``docker compose kill`` would be a stop by hand, after which nothing
        starts it again. Returns the container as it was.
        """
        (before,) = self.containers(service)
        line = f"kill -KILL $(cat /proc/{before.pid}/task/{before.pid}/children)"
        self.shell(line)
        return before

    def gateway(self) -> str:
        """Return the host's address that containers of every network reach, and other hosts do not."""
        shown = "{{(index .IPAM.Config 0).Gateway}}"
        words = ["docker", "network", "inspect", "bridge", "--format", shown]
        return self.engine.run(words, self.directory).stdout.strip()

    def images(self) -> dict[str, int]:
        """Return the size of each image that the files name, in bytes."""
        names = {str(service["image"]) for service in self.configuration()["services"].values()}
        found = {}
        for name in sorted(names):
            words = ["docker", "image", "inspect", "--format", "{{.Size}}", name]
            if (done := self.engine.run(words, self.directory, check=False)).returncode == 0:
                found[name.removesuffix(f":{TAG}")] = int(done.stdout)
        return found

    def remove(self, *, images: bool) -> None:
        """Remove the project's containers, networks and volumes, and ``images`` says whether those built for it."""
        down = ["--profile", "*", "down", "--volumes", "--remove-orphans", "--timeout", "5"]
        self.compose(*options("compose.metrics.yml"), *down, check=False)
        if images:
            words = ["docker", "image", "ls", "--quiet", "--filter", f"reference=omni-jobs-*:{TAG}"]
            if found := self.engine.run(words, self.directory, check=False).stdout.split():
                self.engine.run(["docker", "image", "rm", "--force", *found], self.directory, check=False)


class Watch:
    """Sees from a thread when each of some services is up, and was started again as often as ``after`` says.

    ``seconds`` has the time of it by service, since the begin of the watch.
    """

    def __init__(self, deployment: Deployment, after: Mapping[str, int] | None = None) -> None:
        self._deployment, self._after = deployment, after
        self.seconds: dict[str, float] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, name="watch")

    def __enter__(self) -> Self:
        self._began = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._ended.wait(LOOK_S):
            for one in self._deployment.containers(*(self._after or {})):
                if one.up and (self._after is None or one.restarts > self._after[one.service]):
                    self.seconds.setdefault(one.service, time.monotonic() - self._began)
