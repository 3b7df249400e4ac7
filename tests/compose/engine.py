"""The container engine: the host's Docker, or one that lives in namespaces of its own and leaves nothing behind."""

import contextlib
import ctypes
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from tests.compose import debian

PROGRAMS = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
PACKAGES = (
    "ca-certificates",
    "docker.io",
    "docker-cli",
    "docker-compose",
    "docker-buildx",
    "iproute2",
    "iptables",
    "procps",
)
CGROUP = "omni-jobs-compose-test"
START_S = 60.0
LIMIT_S = 900.0  # of one command; `up --wait` would wait an hour for a worker that does not come up
STOP_S = 90.0
OLDEST_COMPOSE = (2, 24, 4)
PASSED_ON = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy")

# In new mount, pid, uts and ipc namespaces, as root: makes $1 the root of the file system, keeps $2 where it is, and
# becomes the daemon. With a network namespace of its own (`bridges`) the daemon makes its bridges there; with the
# host's (`host`) it makes none, and builds reach the package registries. sysfs shows the network namespace of its
# mount, so the host's is not taken.
INSIDE = """
set -eu
root=$1 work=$2 network=$3 cgroup=$4
mount --bind "$root" "$root"
mount -t proc proc "$root/proc"
mount -t sysfs sysfs "$root/sys"
mount --rbind /sys/fs/cgroup "$root/sys/fs/cgroup"
mount --rbind /dev "$root/dev"
for directory in run tmp; do mount -t tmpfs tmpfs "$root/$directory"; done
mkdir -p "$root$work" "$root/outside"
mount --bind "$work" "$root$work"
cd "$root"
pivot_root . outside
cd /
umount --lazy /outside
set --
if [ "$network" = host ]; then set -- --bridge=none --iptables=false --ip6tables=false; else ip link set lo up; fi
exec docker-init -s -- dockerd --exec-opt native.cgroupdriver=cgroupfs --cgroup-parent "/$cgroup" "$@"
"""


class EngineError(Exception):
    """What the engine cannot do on this host."""


class Engine:
    """A Docker with Compose. This one is the host's own."""

    kind = "the host's Docker"
    build_network = "default"

    def command(self, words: Sequence[str], directory: Path) -> list[str]:
        """Return the command line by which the host runs ``words`` beside the daemon."""
        return ["env", f"--chdir={directory}", *words]

    def run(self, words: Sequence[str], directory: Path, *, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a command beside the daemon. Raises EngineError with what it said where it fails and ``check`` is set."""
        command = self.command(words, directory)
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=LIMIT_S
            )
        except subprocess.TimeoutExpired as error:
            raise EngineError(f"`{' '.join(words)[:300]}` did not end within {LIMIT_S:.0f} s") from error
        if check and done.returncode != 0:
            said = "\n".join((done.stdout + done.stderr).splitlines()[-40:])
            raise EngineError(f"`{' '.join(words)[:300]}` ended with {done.returncode}:\n{said}")
        return done

    def start_to_build(self) -> None:
        """Make builds possible."""

    def start_to_run(self) -> None:
        """Make published ports reachable from this process and from all that it starts."""

    def free_port(self) -> int:
        """Return a port where nothing listens on the host now."""
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            return int(listener.getsockname()[1])

    def stop(self) -> None:
        """End what was started."""

    def versions(self, directory: Path) -> str:
        """Return the versions of daemon and Compose. Raises EngineError where Compose is too old."""
        daemon = self.run(["docker", "version", "--format", "{{.Server.Version}}"], directory).stdout.strip()
        compose = self.run(["docker", "compose", "version", "--short"], directory).stdout.strip()
        if tuple(int(part) for part in re.findall(r"\d+", compose)[:3]) < OLDEST_COMPOSE:
            raise EngineError(f"Compose is {compose}: docker-compose.yml needs 2.24.4")
        return f"Docker {daemon}, Compose {compose}"


class OwnEngine(Engine):
    """Docker of Debian forky's packages in ``root``, in namespaces of its own. Needs root, and a mirror of Debian."""

    kind = "a Docker of its own, in namespaces"
    build_network = "host"

    def __init__(self, root: Path, work: Path) -> None:
        self.root, self.work = root, work
        self._outer: subprocess.Popen[bytes] | None = None
        self._init = 0

    def install(self) -> None:
        """Unpack the packages, unless they are there."""
        debian.bootstrap("forky", self.root, PACKAGES, self.work / "debootstrap")

    def _start(self, network: str) -> None:
        self.stop()
        write_anew(Path("/etc/resolv.conf"), self.root / "etc" / "resolv.conf")
        namespaces = ["--mount", "--pid", "--fork", "--kill-child", "--uts", "--ipc", "--propagation", "private"]
        if network != "host":
            namespaces.append("--net")
        inside = ["bash", "-c", INSIDE, "engine", str(self.root), str(self.work), network, CGROUP]
        environment = {name: os.environ[name] for name in PASSED_ON if name in os.environ} | {"PATH": PROGRAMS}
        with (self.work / f"dockerd-{network}.log").open("wb") as log:
            # In a session of its own, so that Ctrl-C does not reach it; if this process is killed, it is killed too.
            self._outer = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", "unshare", *namespaces, *inside],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, env=environment,
            )  # fmt: skip
        until = time.monotonic() + START_S
        while time.monotonic() < until and self._outer.poll() is None:
            children = Path(f"/proc/{self._outer.pid}/task/{self._outer.pid}/children").read_text().split()
            if children:
                self._init = int(children[0])
                if self.run(["docker", "version"], self.work, check=False).returncode == 0:
                    return
            time.sleep(0.2)
        said = Path(log.name).read_text(errors="replace")[-3000:]
        self.stop()
        raise EngineError(f"dockerd does not start:\n{said}")

    def command(self, words: Sequence[str], directory: Path) -> list[str]:
        enter = ["nsenter", f"--target={self._init}", "--mount", "--pid", "--uts", "--ipc", "--net", "--root"]
        clean = ["env", "-i", f"--chdir={directory}", f"PATH={PROGRAMS}", "HOME=/root"]
        return [*enter, *clean, *words]

    def start_to_build(self) -> None:
        self._start("host")

    def start_to_run(self) -> None:
        self._start("bridges")
        with open(f"/proc/{self._init}/ns/net", "rb") as namespace:
            library = ctypes.CDLL(None, use_errno=True)
            if library.setns(namespace.fileno(), 0x40000000) != 0:  # CLONE_NEWNET
                raise EngineError(f"cannot enter the engine's network: {os.strerror(ctypes.get_errno())}")

    def stop(self) -> None:
        if self._outer is None:
            return
        if self._init:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._init, signal.SIGTERM)
        try:
            self._outer.wait(STOP_S if self._init else 1)
        except subprocess.TimeoutExpired:
            self._outer.kill()  # and with it all of its namespaces
            self._outer.wait()
        self._outer, self._init = None, 0
        groups = Path("/sys/fs/cgroup")
        for hierarchy in (groups / CGROUP, *groups.glob(f"*/{CGROUP}")):
            for directory, _, _ in os.walk(hierarchy, topdown=False):
                with contextlib.suppress(OSError):  # a process may still be ending there
                    os.rmdir(directory)


def write_anew(source: Path, target: Path) -> None:
    """Write a file anew, also where a link that leads nowhere stands in its place."""
    target.unlink(missing_ok=True)
    target.write_bytes(source.read_bytes())


def host_docker(directory: Path) -> Engine | None:
    """Return the host's Docker, if one answers and has Compose."""
    engine = Engine()
    try:
        engine.versions(directory)
    except (EngineError, FileNotFoundError):
        return None
    return engine
