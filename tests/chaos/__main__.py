"""``python -m tests.chaos``: a run of faults, and what became of the jobs."""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import pytest
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text
from sqlalchemy import exc, text

from tests.chaos.checker import (
    ORPHAN_S,
    Checked,
    Sampler,
    StoredBytes,
    check,
    unfinished,
    wait_until_collected,
    wait_until_forgotten,
)
from tests.chaos.clients import Abilities, Clients, Log, Record
from tests.chaos.faults.driver import Faults, Struck
from tests.chaos.faults.kinds import KINDS
from tests.chaos.pipeline_files import ECHO
from tests.chaos.recovery import Recoveries, Recovery, percentile
from tests.chaos.stack import LEASE_S, ChaosStack, StackFailed
from tests.chaos.stock_clients import StockClients

IN_NAMESPACES = "OMNI_CHAOS_IN_NAMESPACES"
FLOODED_S = 60.0  # after a flood a job may still fail of it
LIMIT_S = 120.0  # after the last fault everything must have ended within so long
VIOLATION, UNUSABLE = 1, 3

_HELP = """
Runs the whole system as real processes on this machine, strikes it with faults about every
three seconds, and at the end compares SQL, the object store and the clients' own log.

  --database sqlite      SQLite, and objects on a small tmpfs whose room can run out
  --database postgresql  PostgreSQL and S3, both behind a proxy that cuts, delays and spoils;
                         two of the workers on a "host" of their own whose cable can be pulled

What is struck is seeded: the same seed deals the same faults in the same order (when each one
meets which job depends on the machine). As root, mounts and network are made in namespaces that
only this run sees; otherwise the faults that need them are left out, which the output says.
"""
_EXAMPLES = """
examples:
  python -m tests.chaos --database sqlite --seed 1 --minutes 2
  python -m tests.chaos --database postgresql --seed 7 --minutes 30 --json report.json
  python -m tests.chaos --database sqlite --only kill_worker --only flush_valkey --minutes 1
  python -m tests.chaos --list

exit codes:
  0  nothing lost, doubled or stuck, and every check holds
  1  a violation: the data directory is kept, its path is printed
  2  wrong usage
  3  the system did not start, or a service is not installed
"""


def main() -> None:
    options = _options()
    if options.list:
        _list_kinds()
        return
    namespaces = _enter_namespaces()
    if options.pipeline != "echo":
        from tests.chaos.real_models import run_real_models

        sys.exit(run_real_models(options))
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        sys.exit(Run(options, namespaces).carry_out())
    except (StackFailed, subprocess.CalledProcessError) as error:
        print(f"chaos: {error}", file=sys.stderr)
        sys.exit(UNUSABLE)
    except (pytest.skip.Exception, pytest.fail.Exception) as lacking:  # tests.services says what is missing
        print(f"chaos: {lacking}", file=sys.stderr)
        sys.exit(UNUSABLE)
    except KeyboardInterrupt:
        print("chaos: interrupted", file=sys.stderr)
        sys.exit(130)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "python -m tests.chaos",
        description=_HELP,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--database", choices=("sqlite", "postgresql"), default="sqlite", help="default: sqlite")
    parser.add_argument(
        "--pipeline",
        choices=("echo", "qwen2_5_omni", "qwen3_omni", "qwen_image", "voice", "wan"),
        default="echo",
        help="default: echo; the others: real models, on SQLite",
    )
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of faults and clients; default: 1")
    parser.add_argument("--minutes", type=float, default=2.0, metavar="M", help="of faults; default: 2")
    parser.add_argument("--jobs", type=int, metavar="N", help="submit no more than these; default: as time allows")
    parser.add_argument("--rate", type=float, default=8.0, metavar="R", help="jobs a second; default: 8")
    parser.add_argument("--every", type=float, default=3.0, metavar="S", help="seconds between faults; default: 3")
    parser.add_argument(
        "--only", action="append", choices=sorted(KINDS), metavar="KIND", help="faults of this kind only"
    )
    parser.add_argument(
        "--each", type=int, metavar="N", help="stop once each kind of fault came about N times; default: as time allows"
    )
    parser.add_argument("--faults", type=int, metavar="N", help="stop once N faults came about")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the report here")
    parser.add_argument("--keep", action="store_true", help="keep the data directory in any case")
    parser.add_argument("--list", action="store_true", help="list the kinds of faults")
    options = parser.parse_args()
    if options.minutes <= 0 or options.rate <= 0 or options.every <= 0:
        parser.error("--minutes, --rate and --every must be more than 0")
    if options.faults is not None and options.faults < 1:
        parser.error("--faults must be at least 1")
    if options.each is not None and options.each < 1:
        parser.error("--each must be at least 1")
    return options


def _list_kinds() -> None:
    table = Table(box=None, header_style="dim")
    for title in ("kind", "target", "what happens"):
        table.add_column(title)
    for fault in KINDS.values():
        table.add_row(fault.kind, fault.target, fault.about)
    Console().print(table)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _enter_namespaces() -> bool:
    """Run again where mounts and network are this run's own; whether that is so now."""
    if IN_NAMESPACES not in os.environ:
        _run_again()
    return os.environ[IN_NAMESPACES] == "yes"


def _run_again() -> NoReturn:
    """In namespaces of this run's own, where they may be made."""
    words = ["unshare", "--mount", "--net", "--propagation", "private"]
    probe = [
        "sh",
        "-c",
        "mount -t tmpfs tmpfs /mnt && ip link set lo up && ip link add chaos0 type veth peer name chaos1",
    ]
    may = shutil.which("unshare") is not None and subprocess.run([*words, *probe], capture_output=True).returncode == 0
    again = [sys.executable, "-m", "tests.chaos", *sys.argv[1:]]
    if may:
        again = [*words, "sh", "-c", 'ip link set lo up && exec "$@"', "sh", *again]
    sys.stdout.flush()
    os.execvpe(again[0], again, os.environ | {IN_NAMESPACES: "yes" if may else "no"})


@dataclass
class Outcome:
    """What a run found."""

    checked: Checked
    struck: Sequence[Struck]
    violations: Sequence[str]
    report: dict[str, Any]


class Run:
    """One run: start, strike, settle, check."""

    def __init__(self, options: argparse.Namespace, namespaces: bool) -> None:
        self._options = options
        self._namespaces = namespaces
        self._console = Console()
        self._directory = Path(tempfile.mkdtemp(prefix="omni-jobs-chaos-"))
        self._directory.chmod(0o755)  # PostgreSQL is another user's
        self._phase = "starting"
        self._until = 0.0

    def carry_out(self) -> int:
        options = self._options
        kept = True
        if not self._namespaces:
            self._console.print("no namespaces here: the disk cannot be filled, and no host is cut off")
        stack = ChaosStack(
            self._directory / "run",
            options.database,
            minutes=options.minutes,
            far_host=self._namespaces,
            tmpfs=self._namespaces,
        )
        try:
            stack.start()
            outcome = self._strike(stack)
            kept = bool(outcome.violations) or options.keep
        except StackFailed:
            raise
        except BaseException:
            kept = options.keep
            raise
        finally:
            if kept and stack.tmpfs:
                shutil.copytree(stack.objects, self._directory / "objects", dirs_exist_ok=True)
            stack.close()
            if not kept:
                shutil.rmtree(self._directory, ignore_errors=True)
        self._tell(outcome)
        if kept:
            self._console.print(f"the data directory is kept: {self._directory}", soft_wrap=True)
        if options.json:
            options.json.write_text(json.dumps(outcome.report, indent=2) + "\n", encoding="utf-8")
        return VIOLATION if outcome.violations else 0

    def _strike(self, stack: ChaosStack) -> Outcome:
        options = self._options
        recoveries, sampler = Recoveries(stack.engine), Sampler(stack.engine)
        faults = Faults(stack, recoveries, options.seed, options.every, options.only)
        log = Log(self._directory / "clients.jsonl")
        clients = Clients(
            stack.api_urls, options.seed, log, Abilities.of(stack.api_urls[0]), options.rate, options.jobs
        )
        stock = StockClients(stack.api_urls, options.seed)
        began = time.time()
        threads = (recoveries, sampler)
        for thread in threads:
            thread.start()
        clients.start()
        stock.start()
        faults.start()
        try:
            with self._display(stack, clients, faults):
                self._phase, self._until = "striking", time.monotonic() + options.minutes * 60
                while time.monotonic() < self._until:
                    if options.jobs is not None and clients.accepted >= options.jobs and clients.settled():
                        break
                    if options.each is not None and faults.came_about(options.each):
                        break
                    if options.faults is not None and faults.counts.total() >= options.faults:
                        break
                    time.sleep(0.2)
                clients.submitting.clear()
                stock.submitting.clear()
                self._phase = "undoing the last faults"
                faults.stop()
                self._phase, self._until = "settling", time.monotonic() + LIMIT_S
                settled_s = self._settle(stack, lambda: clients.settled() and stock.settled())
        finally:
            faults.stop()
            clients.stop()
            stock.stop()
            for thread in threads:
                thread.stop()
        objects = StoredBytes(stack.objects if stack.s3 is None else None, stack.s3)
        self._collect(stack, objects)
        records = clients.records
        checked = check(stack.engine, objects, records, sampler, asked=stock.asked)
        violations = [*faults.violations, *clients.violations, *stock.violations, *checked.violations]
        violations += _unexplained(checked, faults.counts) + _not_flooded(checked, faults.struck)
        seen = Counter((sampler.pipelines[worker], digest) for worker, digest in sampler.files.items())
        if faults.counts["other_file"] and len(seen) == len({pipeline for pipeline, _ in seen}):
            violations.append("the driver: workers served with another file, and all that were seen had the same")
        of_echo = [reference for reference in checked.versions if reference.startswith(f"{ECHO}@")]
        if faults.counts["upgrade"] and len(of_echo) < 2:
            violations.append(f"the driver: echo was upgraded, and all its jobs are of {of_echo}")
        report = self._report(stack, clients, faults, recoveries, checked, records, violations)
        report |= {"ran_s": round(time.time() - began, 1), "settled_s": settled_s, "samples": sampler.looks}
        report |= {"stock": stock.outcomes, "forks": _forks(records)}
        report["workers_by_file"] = {f"{pipeline} {digest}": count for (pipeline, digest), count in seen.items()}
        return Outcome(checked, faults.struck, violations, report)

    def _settle(self, stack: ChaosStack, settled: Callable[[], bool]) -> float | None:
        """Wait until everything has ended, and the clients are settled; after how long, or None when it does not."""
        began = time.monotonic()
        while time.monotonic() < self._until:
            with suppress(exc.DBAPIError):
                if settled() and not unfinished(stack.engine):
                    return round(time.monotonic() - began, 1)
            time.sleep(0.2)
        return None

    def _collect(self, stack: ChaosStack, objects: StoredBytes) -> None:
        self._phase, self._until = "collecting", time.monotonic() + ORPHAN_S
        stack.outlast_requests()
        wait_until_forgotten(stack.engine)
        wait_until_collected(stack.engine, objects)

    # -- what a person sees -------------------------------------------------------------------

    def _display(self, stack: ChaosStack, clients: Clients, faults: Faults) -> Any:
        def lines() -> Group:
            left = max(0, round(self._until - time.monotonic()))
            running = ", ".join(f"{kind} ({target})" for target, kind in sorted(faults.running.items())) or "none"
            violations = len(clients.violations) + len(faults.violations)
            counts = f"jobs: {clients.accepted} accepted, {clients.ended} ended   faults: {len(faults.struck)}"
            wrong = Text(f"violations: {violations}", style="bold red" if violations else "dim")
            return Group(
                Text(f"{stack.kind}, seed {self._options.seed}: {self._phase}, {left} s left", style="bold"),
                Text(counts),
                Text(f"now: {running}"),
                wrong,
            )

        if self._console.is_terminal:
            return Live(get_renderable=lines, console=self._console, refresh_per_second=4)
        return _Lines(self._console, lines)

    def _tell(self, outcome: Outcome) -> None:
        report, say = outcome.report, self._console.print
        table = Table(box=None, header_style="dim", pad_edge=False)
        for title in ("fault", "times", "recovered", "p50 s", "p99 s"):
            table.add_column(title, justify="left" if title == "fault" else "right")
        for kind, count in sorted(report["faults"].items()):
            known = report["recovery"].get(kind, {})
            table.add_row(
                kind, *(_shown(value) for value in (count, *(known.get(n) for n in ("count", "p50_s", "p99_s"))))
            )
        say(table)
        counted = (
            "jobs",
            "lost",
            "doubled",
            "stuck",
            "wasted_runs",
            "recovery_p50_s",
            "recovery_p99_s",
            "cancel_p99_s",
        )
        say("   ".join(f"{name} {_shown(report[name])}" for name in counted))
        say(
            "   ".join(
                f"{name} {report[name]}"
                for name in ("outcomes", "versions", "errors", "flooded", "answers", "forks", "stock")
            )
        )
        say(f"{sum(report['faults'].values())} faults in {report['ran_s']} s, settled after {report['settled_s']} s")
        for sentence in outcome.violations:
            self._console.print(f"violation: {sentence}", style="red", markup=False, highlight=False, soft_wrap=True)
        if not outcome.violations:
            say("nothing lost, doubled or stuck; every check holds", style="green")

    # -- the report -----------------------------------------------------------------------------

    def _report(
        self,
        stack: ChaosStack,
        clients: Clients,
        faults: Faults,
        recoveries: Recoveries,
        checked: Checked,
        records: Sequence[Record],
        violations: Sequence[str],
    ) -> dict[str, Any]:
        options = self._options
        killed = [each for each in recoveries.found if each.kind.startswith("kill_worker")]
        alone = [each for each in killed if _is_alone(each, faults.struck)]
        of_kinds = {
            kind: _recovery_of([each for each in recoveries.found if each.kind == kind], faults.struck)
            for kind in sorted({each.kind for each in recoveries.found})
        }
        cancels = _cancel_times(stack, records)
        return {
            "database": options.database,
            "pipeline": options.pipeline,
            "seed": options.seed,
            "minutes": options.minutes,
            "lease_s": LEASE_S,
            "jobs": clients.accepted,
            "faults": dict(sorted(faults.counts.items())),
            "came_to_nothing": faults.nothings,
            "proxied": dict(sorted(stack.proxied.items())),
            "lost": checked.lost,
            "doubled": checked.doubled,
            "stuck": checked.stuck,
            "recovery_p50_s": percentile([each.seconds for each in killed], 0.5),
            "recovery_p99_s": percentile([each.seconds for each in killed], 0.99),
            "freed_p50_s": percentile([each.freed_s for each in killed], 0.5),
            "freed_p99_s": percentile([each.freed_s for each in killed], 0.99),
            "recovery_alone_p50_s": percentile([each.seconds for each in alone], 0.5),
            "recovery_alone_p99_s": percentile([each.seconds for each in alone], 0.99),
            "recovery": of_kinds,
            "slowest": [_with_others(each, faults.struck) for each in sorted(recoveries.found, key=_slowest)[:10]],
            "held": dict(sorted(recoveries.lost.items())),
            "cancels": len(cancels),
            "cancel_p50_s": percentile(cancels, 0.5),
            "cancel_p99_s": percentile(cancels, 0.99),
            "wasted_runs": checked.wasted_runs,
            "outcomes": dict(sorted(checked.outcomes.items())),
            "versions": dict(sorted(checked.versions.items())),
            "errors": dict(sorted(checked.errors.items())),
            "flooded": dict(sorted(Counter(code for _, _, code in checked.flooded).items())),
            "attempt_errors": dict(sorted(checked.attempt_errors.items())),
            "answers": {str(status or "none"): count for status, count in sorted(clients.answers.items())},
            "unexpected_exits": dict(Counter(f"{e.name} {e.status}" for e in stack.processes.unexpected())),
            "objects": checked.objects,
            "orphans": checked.orphans,
            "violations": list(violations),
        }


class _Lines:
    """The display where there is no terminal: a few lines now and then."""

    def __init__(self, console: Console, lines: Any) -> None:
        self._console = console
        self._lines = lines
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="display", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(15):
            self._console.print(self._lines())


def _recovery_of(found: Sequence[Recovery], struck: Sequence[Struck]) -> dict[str, Any]:
    alone = [each.seconds for each in found if _is_alone(each, struck)]
    since = [each.since_start_s for each in found if each.since_start_s is not None]
    return {
        "count": len(found),
        "p50_s": percentile([each.seconds for each in found], 0.5),
        "p99_s": percentile([each.seconds for each in found], 0.99),
        "freed_p50_s": percentile([each.freed_s for each in found], 0.5),
        "freed_p99_s": percentile([each.freed_s for each in found], 0.99),
        "alone": len(alone),
        "alone_p50_s": percentile(alone, 0.5),
        "alone_p99_s": percentile(alone, 0.99),
        "since_start_p50_s": percentile(since, 0.5),
        "since_start_p99_s": percentile(since, 0.99),
    }


def _slowest(recovery: Recovery) -> float:
    return -recovery.seconds


def _with_others(recovery: Recovery, struck: Sequence[Struck]) -> dict[str, Any]:
    """A recovery, and what else went on meanwhile."""
    until = recovery.lost_at + recovery.seconds
    others = [f"{each.kind} {each.target}" for each in struck if each.began < until and each.ended > recovery.lost_at]
    return {
        "kind": recovery.kind,
        "stage_run": recovery.stage_run_id,
        "lost_at": round(recovery.lost_at, 2),
        "seconds": round(recovery.seconds, 2),
        "faults": others,
    }


def _is_alone(recovery: Recovery, struck: Sequence[Struck]) -> bool:
    """Whether no other fault went on between the loss and the recovery."""
    until = recovery.lost_at + recovery.seconds
    others = [each for each in struck if each.began < until and each.ended > recovery.lost_at]
    return len([each for each in others if not (each.kind == recovery.kind and each.began <= recovery.lost_at)]) == 0


def _cancel_times(stack: ChaosStack, records: Sequence[Record]) -> list[float]:
    """From the answer ``cancelling`` to the end, by SQL."""
    with stack.engine.connect() as connection:
        rows = connection.execute(text("SELECT id, finished_at FROM jobs WHERE state = 'cancelled'"))
        ends: dict[str | None, float] = {row.id: row.finished_at for row in rows}
    asked = [each for each in records if each.cancel_answer == "cancelling" and each.cancel_at is not None]
    return [max(0.0, ends[each.job_id] - (each.cancel_at or 0.0)) for each in asked if each.job_id in ends]


def _forks(records: Sequence[Record]) -> dict[str, int]:
    """How many forks there were, and what became of them."""
    forks = [each for each in records if each.origin is not None]
    ends = Counter("refused" for each in forks if each.refused)
    ends.update(each.final["status"] for each in forks if not each.refused and each.final is not None)
    return dict(sorted(ends.items()))


# Errors a job may end with, and the fault that explains it; a job too large fails in any case.
_EXPLAINED = {"payload_too_large": "", "object_corrupt": "s3_wrong_bytes", "payload_corrupt": "s3_wrong_bytes"}


def _unexplained(checked: Checked, counts: Counter[str]) -> list[str]:
    found = []
    for code, count in checked.errors.items():
        cause = _EXPLAINED.get(code)
        if cause is None or (cause and not counts[cause]):
            found.append(f"failed: {count} jobs ended with {code}, which no fault here explains")
    return found


def _not_flooded(checked: Checked, struck: Sequence[Struck]) -> list[str]:
    """Jobs of the remote stage that failed, though its server did not flood."""
    floods = [each for each in struck if each.kind == "flooding_server"]
    return [
        f"failed: {job_id} of the remote stage ended with {code}, and its server did not flood"
        for job_id, at, code in checked.flooded
        if not any(each.began <= at <= each.ended + FLOODED_S for each in floods)
    ]


def _shown(value: object) -> str:
    return "–" if value is None else str(value)


if __name__ == "__main__":
    main()
