"""The fault of the network: a host that is cut off."""

import time

from tests.chaos.faults.fault import Chaos, fault
from tests.chaos.stack import LEASE_S


@fault("cable", weight=3)
def pull_cable(chaos: Chaos) -> None:
    """A host with two workers is cut off from everything for longer than a lease."""
    workers = [worker.process for worker in chaos.stack.workers if worker.far]
    held = [run for process in workers if process.runs for run in chaos.recoveries.held_by(process.pid)]
    at = time.time()
    chaos.stack.cable(plugged=False)
    try:
        chaos.recoveries.follow("pull_cable", held, at)
        chaos.wait(LEASE_S + 1, LEASE_S + 5)
    finally:
        chaos.stack.cable(plugged=True)
