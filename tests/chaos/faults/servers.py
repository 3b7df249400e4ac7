"""The faults of API servers and rescuers."""

import signal

from tests.chaos.faults.fault import Chaos, fault


@fault("api", weight=2)
def kill_api(chaos: Chaos) -> None:
    """kill -9 of an API server."""
    chaos.victim.signal(signal.SIGKILL)
    chaos.wait(1, 3)


@fault("api")
def stop_api(chaos: Chaos) -> None:
    """SIGSTOP, then SIGCONT, of an API server."""
    with chaos.stopped(chaos.victim):
        chaos.wait(2, 7)


@fault("api")
def terminate_api(chaos: Chaos) -> None:
    """SIGTERM of an API server."""
    chaos.victim.signal(signal.SIGTERM)
    chaos.wait(1, 3)


@fault("rescuer")
def kill_rescuer(chaos: Chaos) -> None:
    """kill -9 of a rescuer."""
    chaos.victim.signal(signal.SIGKILL)
    chaos.wait(1)


@fault("rescuer")
def stop_rescuer(chaos: Chaos) -> None:
    """SIGSTOP, then SIGCONT, of a rescuer."""
    with chaos.stopped(chaos.victim):
        chaos.wait(2, 7)
