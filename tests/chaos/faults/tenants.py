"""The faults of whose turn it is: operators change tenants, and pause stages and versions, under load."""

from sqlalchemy import exc

from omni_jobs.errors import NotFound
from tests.chaos.faults.fault import Chaos, Nothing, fault
from tests.chaos.stack import ASKING, WEIGHTS


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


@fault("tenants", weight=2)
def drain_version(chaos: Chaos) -> None:
    """The version of a pipeline takes no new jobs for some seconds: those that it has go on, and clients come again."""
    try:
        with chaos.stack.draining(chaos.random.choice(("echo", "echo", ASKING))):
            chaos.wait(2, 6)
    except NotFound:
        raise Nothing("no server has told of its versions yet") from None
