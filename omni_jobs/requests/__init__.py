"""A job's request: what a client sends, and what is left of it once it is admitted.

admit(body, pipelines, settings) → Admitted    every check there is; nothing is stored before
parse(body, settings) → Parsed                 its first step: the form

The HTTP API and OmniLLM both come through here, so both take and refuse the same.
"""

from __future__ import annotations

from omni_jobs.requests.admission import Admitted, Media, Parsed, admit, parse
from omni_jobs.requests.deadline import cancel_after, check_deadline
from omni_jobs.requests.job_request import JobRequest

__all__ = ["Admitted", "JobRequest", "Media", "Parsed", "admit", "cancel_after", "check_deadline", "parse"]
