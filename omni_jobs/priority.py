"""``Priority``: the order of a tenant's jobs among themselves. See ``omni_jobs.jobs.order.turns``."""

from enum import StrEnum


class Priority(StrEnum):
    """The priority of a job within its tenant."""

    HIGH = "high"  # before the tenant's other jobs; its key must permit it
    NORMAL = "normal"
    LOW = "low"  # after the tenant's other jobs, and never for ever


def queue_of(stage_queue: str, priority: Priority) -> str:
    """Return the queue of the doorbells for a job of this priority; ``stage_queue`` is that of its stage.

    Doorbells of high jobs have a queue of their own, because a worker that has only slots for high jobs free must not
    take the doorbells of others.
    """
    return f"{stage_queue}.high" if priority is Priority.HIGH else stage_queue
