"""All faults, by their kind."""

from tests.chaos.faults import broker, database, hangs, network, objects, servers, tenants, versions, workers
from tests.chaos.faults.fault import Fault

_ROOMS = (workers, tenants, versions, servers, broker, database, objects, network, hangs)
KINDS = {each.kind: each for room in _ROOMS for each in vars(room).values() if isinstance(each, Fault)}
"""In the order of the rooms, from which a seed deals."""
