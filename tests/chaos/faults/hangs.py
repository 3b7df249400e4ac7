"""The faults of what hangs, blocks and floods, and of starts that do not get far."""

import json
import time
from contextlib import suppress

from sqlalchemy import exc, text

from tests.chaos.faults.fault import Chaos, Nothing, NotUndone, fault
from tests.chaos.flooding_server import FLOODS
from tests.chaos.recovery import Held
from tests.chaos.stack import ENGINE_STALL_S, STALL_AFTER_S

_ORDERED_S = 10.0  # for a step to find an order
_CLOSE_S = 45.0  # that a worker takes at the most to end once it has noticed
_SLACK_S = 60.0  # on a busy machine, and while the database is away

_ERRORS = text("SELECT stage_run_id, error FROM attempt_errors WHERE at >= :since")


@fault("echo worker", weight=2)
def hung_step(chaos: Chaos) -> None:
    """A step of a worker's engine hangs, for one stage run: the worker ends, and no other stage run is to blame."""
    at = time.time()
    held = _strike_step(chaos, "hung_step", "hang", ENGINE_STALL_S)
    blamed = _blamed(chaos, held, at)
    if len(blamed) > 1:
        raise NotUndone(f"{chaos.victim.name}: one step hung, and {len(blamed)} stage runs are to blame: {blamed}")


@fault("echo worker", weight=2)
def blocked_loop(chaos: Chaos) -> None:
    """A stage run blocks the event loop of its worker, which ends."""
    _strike_step(chaos, "blocked_loop", "block", STALL_AFTER_S)


def _strike_step(chaos: Chaos, kind: str, order: str, noticed_s: float) -> list[Held]:
    """Order it for the next step, and wait until the worker has ended; what it held when the order was found."""
    worker = chaos.worker
    if worker is None:
        raise RuntimeError("this fault has no worker")
    pid = chaos.victim.pid
    worker.order.write_text(order)
    until = time.monotonic() + _ORDERED_S
    while worker.order.exists() and time.monotonic() < until and chaos.victim.pid == pid:
        time.sleep(0.05)
    try:
        worker.order.unlink()
    except FileNotFoundError:
        pass  # a step has found it
    else:
        raise Nothing("no step was taken")
    at = time.time()
    held = chaos.recoveries.held_by(pid)
    chaos.recoveries.follow(kind, held, at)
    until = time.monotonic() + noticed_s + _CLOSE_S + _SLACK_S
    while chaos.victim.pid == pid and chaos.victim.runs:
        if time.monotonic() > until:
            raise NotUndone(f"{chaos.victim.name} (pid {pid}) still runs after {kind}")
        time.sleep(0.05)
    return held


def _blamed(chaos: Chaos, held: list[Held], since: float) -> list[int]:
    """The stage runs of these to which an error of an engine that hangs was written."""
    with suppress(exc.DBAPIError), chaos.stack.engine.connect() as connection:
        ours = {each.stage_run_id for each in held}
        rows = connection.execute(_ERRORS, {"since": since}).all()
        return [
            row.stage_run_id
            for row in rows
            if row.stage_run_id in ours and "OMNI_JOBS_ENGINE_STALL_S" in json.loads(row.error).get("message", "")
        ]
    return []


@fault("worker", weight=2)
def killed_while_starting(chaos: Chaos) -> None:
    """kill -9 of a worker, and of those that are started in its place, each at some moment of its start."""
    for _ in range(chaos.random.randrange(1, 4)):
        pid = chaos.victim.pid
        chaos.kill()
        until = time.monotonic() + _ORDERED_S
        while chaos.victim.pid == pid and time.monotonic() < until:
            time.sleep(0.02)
        chaos.wait(0, 8)
    chaos.kill()


@fault("server", weight=2)
def flooding_server(chaos: Chaos) -> None:
    """The server of a remote stage floods its answers: the jobs that ask it fail, and its worker lives."""
    worker = chaos.stack.asking
    pid, order = worker.process.pid, chaos.stack.flood_order
    began = time.time()
    order.write_text(chaos.random.choice(FLOODS))
    try:
        chaos.wait(4, 10)
    finally:
        order.unlink()
    chaos.wait(STALL_AFTER_S)
    if worker.process.pid != pid and not chaos.others_since(began) & {worker.process.name, "cable", *_DATABASES}:
        raise NotUndone(f"{worker.process.name} (pid {pid}) did not outlive its server's flood")


_DATABASES = ("postgres", "sqlite")
