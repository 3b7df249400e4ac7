"""The faults of whose turn it is: operators change tenants, and pause stages, under load."""

from sqlalchemy import exc

from tests.chaos.faults.fault import Chaos, Nothing, fault
from tests.chaos.stack import WEIGHTS


@fault("tenants", weight=2)
def change_weights(chaos: Chaos) -> None:
    """Tenants get other weights, one of them nearly all the shares or nearly none, and one another limit."""
    weights = {name: chaos.random.choice((0.001, 0.5, 1.0, 8.0, 1000.0)) for name in WEIGHTS}
    try:
        chaos.stack.set_tenants(weights, running_jobs=chaos.random.choice((3, 10, 50)))
    except exc.DBAPIError:
        raise Nothing("the database did not answer") from None
    chaos.wait(1, 5)


@fault("tenants", weight=2)
def pause_stage(chaos: Chaos) -> None:
    """A stage is paused for some seconds: what it runs goes on, and nothing of it is claimed."""
    with chaos.stack.paused(chaos.random.choice(("first", "second"))):
        chaos.wait(1, 6)
