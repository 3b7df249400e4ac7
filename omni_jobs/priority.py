"""``Priority``: the order of a tenant's jobs among themselves. ``omni_jobs.jobs.turns`` says what each is worth."""

from enum import StrEnum


class Priority(StrEnum):
    """The priority of a job within its tenant."""

    HIGH = "high"  # before the tenant's other jobs; its key must permit it
    NORMAL = "normal"
    LOW = "low"  # after the tenant's other jobs, and never for ever
