"""The doctor: what is wrong with an installation, as seen from this host, and what to do about it.

    examine(settings) → Finding, Finding, …

Each examination is a function in the file of its noun. It changes nothing but what the readiness of a server writes as
well: a row, a key and an object that say that writes work.
"""

from omni_jobs.doctor.examination import EXAMINATIONS, examine
from omni_jobs.doctor.finding import Finding

__all__ = ["EXAMINATIONS", "Finding", "examine"]
