"""The command line of ``scripts/compose-test``."""

import argparse
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from tests.compose import debian, hosts, images, metrics, models, remote
from tests.compose.deployment import FURTHER, TORCH, Deployment, options
from tests.compose.engine import Engine, EngineError, OwnEngine, host_docker
from tests.compose.trial import BUILT, FAULTS, PROFILES, Trial, dumped, report, table

WORK = images.ROOT / ".cache" / "compose-test"
FREE_BYTES = 12 * 1024**3
MORE_BYTES = {"with_worker": 33 * 1024**3, "with_torch": 8 * 1024**3}  # of the larger images
# What is done once jobs of every pipeline have run, in this order.
ACTS = {
    "kills": Trial.kills,
    "restarts": Trial.restarts,
    "scales": Trial.scales,
    "remote": remote.away,
    "metrics": metrics.metrics,
    "proxy": Trial.proxy,
    "hosts": hosts.further_host,
    "backup": Trial.backup,
    "stops": Trial.stops,
}
CANNOT = 3
COMMANDS = ("unshare", "nsenter", "setpriv", "ip", "tar", "apt-get", "dpkg-deb", "openssl")


def main() -> int:
    """Return the exit status: 0 all held, 1 something did not, 3 the host cannot run it."""
    parser = argparse.ArgumentParser(prog="scripts/compose-test", description=__doc__)
    parser.add_argument("--check", action="store_true", help="only say whether this host can run it; 3 if not")
    parser.add_argument("--json", action="store_true", help="print the report as JSON on standard output")
    parser.add_argument("--keep", action="store_true", help="keep the engine's files and images for the next time")
    parser.add_argument("--with-worker", action="store_true", help="build the image of workers on GPUs as well")
    parser.add_argument("--with-torch", action="store_true", help="run pipelines of models as well, by vLLM on the CPU")
    parser.add_argument(
        "--pipelines", metavar="NAME", nargs="+", choices=models.JOBS, default=[*models.JOBS], help="of --with-torch"
    )
    parser.add_argument("--own-engine", action="store_true", help="make an engine also where Docker runs")
    parser.add_argument("--only", metavar="ACT", nargs="+", choices=ACTS, default=[*ACTS], help=f"of {', '.join(ACTS)}")
    parser.add_argument("--work", type=Path, default=WORK, help="a directory for all files, of a local file system")
    given = parser.parse_args()
    work = given.work.absolute()
    free = FREE_BYTES + sum(more for option, more in MORE_BYTES.items() if getattr(given, option))
    if why := cannot(given.own_engine, free, work):
        print(f"scripts/compose-test: this host cannot run it: {why}", file=sys.stderr)
        return CANNOT
    if given.check:
        return 0
    signal.signal(signal.SIGTERM, _interrupt)
    signal.signal(signal.SIGHUP, _interrupt)
    work.mkdir(parents=True, exist_ok=True)
    with (work.parent / f"{work.name}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"scripts/compose-test: another one works in {work}", file=sys.stderr)
            return 1
        try:
            return _try(given, work)
        except KeyboardInterrupt:
            print("scripts/compose-test: stopped; everything it started is gone", file=sys.stderr)
            return 130


def cannot(own_engine: bool, needed: int, work: Path) -> str | None:
    """Return why this host cannot run it, or None."""
    if os.geteuid() != 0:
        return "it needs root, to kill containers' programs and to make an engine"
    there = next(parent for parent in (work, *work.parents) if parent.exists())
    if (free := shutil.disk_usage(there).free) < needed:
        return f"{there} has {free / 1e9:.0f} GB free, and it needs {needed / 1e9:.0f}"
    if not own_engine and host_docker(there) is not None:
        return None
    if lacking := [name for name in COMMANDS if shutil.which(name) is None]:
        return f"Docker does not run, and to make an engine these commands are missing: {', '.join(lacking)}"
    spaces = ["unshare", "--mount", "--pid", "--fork", "--uts", "--ipc", "--net", "ip", "link", "add", "type", "bridge"]
    if (tried := subprocess.run(spaces, capture_output=True, text=True, check=False)).returncode != 0:
        return f"Docker does not run, and no namespaces with a bridge can be made: {tried.stderr.strip()}"
    if "\toverlay\n" not in Path("/proc/filesystems").read_text("utf-8"):
        return "Docker does not run, and the kernel has no overlay file system"
    try:
        mirror = debian.mirror()
    except debian.DebianError as error:
        return f"Docker does not run, and no engine can be made: {error}"
    if not debian.reachable(mirror):
        return "Docker does not run, and the mirror of Debian cannot be reached or has no forky"
    return None


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _try(given: argparse.Namespace, work: Path) -> int:
    began = time.monotonic()
    engine = (None if given.own_engine else host_docker(work)) or OwnEngine(work / "engine", work)
    deployment = Deployment(engine, work / "clone", PROFILES)

    def say(line: str) -> None:
        print(line, file=sys.stderr if given.json else sys.stdout, flush=True)

    further = Deployment(engine, work / "further", ("echo",), FURTHER)
    trial = Trial(deployment, further, say)
    sizes: dict[str, int] = {}
    versions = engine.kind
    try:
        versions = f"{engine.kind}, {_build(trial, engine, work, given)}"
        sizes = deployment.images()
        trial.files()
        remote.prepare(trial)
        trial.start()
        trial.first_jobs()
        if given.with_torch:
            models.models(trial, given.pipelines)
        for act in given.only:
            ACTS[act](trial)
    except FAULTS as error:
        if not (trial.steps and trial.steps[-1].error):  # of a needed step it has been told
            trial.fail("between the steps", error)
    finally:
        # A second Ctrl-C does not end the removal.
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        trial.server.stop()
        if any(step.error for step in trial.steps):
            _keep_logs(deployment, work)
        _remove((further, deployment), work, given.keep)
    found = report(trial, versions, sizes, time.monotonic() - began)
    say(table(found))
    if given.json:
        print(dumped(found))
    return 0 if found["held"] else 1


def _build(trial: Trial, engine: Engine, work: Path, given: argparse.Namespace) -> str:
    """Make the engine and all images. Returns the engine's versions."""
    deployment = trial.deployment
    if isinstance(engine, OwnEngine):
        with trial.step("an engine of its own", needed=True):
            engine.install()
            engine.start_to_build()
        with trial.step("stand-ins for third-party images", needed=True):
            images.make_stand_ins(engine, work)
    versions = engine.versions(work)
    with trial.step("a clone, .env and secrets", needed=True):
        deployment.clone()
        deployment.shell("cp .env.example .env")
        deployment.configure(images.build_arguments())
        deployment.shell("scripts/secrets")
    for service in (*BUILT, *(["worker-image"] if given.with_worker else [])):
        with trial.step(f"image of {service}", needed=True):
            deployment.compose("build", service)
    if given.with_torch:
        with trial.step("image of worker-image, for CPUs", needed=True):
            deployment.configure_torch(images.copy_wheels(work))
            deployment.compose(*options(*TORCH), "build", "worker-image")
    with trial.step("the engine with a network of containers", needed=True):
        engine.start_to_run()
    return versions


def _keep_logs(deployment: Deployment, work: Path) -> None:
    """Write the containers' logs beside the work, which is removed."""
    path = work.with_name(f"{work.name}.log")
    said = deployment.compose("--profile", "*", "logs", "--no-color", "--timestamps", check=False).stdout
    if not said:  # nothing was started
        return
    path.write_text(said, encoding="utf-8")
    print(f"the containers' logs are in {path}", file=sys.stderr)


def _remove(deployments: Sequence[Deployment], work: Path, keep: bool) -> None:
    for deployment in deployments:
        deployment.remove(images=not keep)
    deployments[0].engine.stop()
    if not keep:
        if f" {work}/" in Path("/proc/self/mountinfo").read_text("utf-8"):
            raise EngineError(f"something is mounted below {work}, so it is left")
        shutil.rmtree(work)


if __name__ == "__main__":
    sys.exit(main())
