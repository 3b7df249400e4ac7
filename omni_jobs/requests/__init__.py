"""A job's request: what a client sends, and what is left of it once it is admitted.

admit(body, pipelines, settings) → AdmittedRequest    every check there is; nothing is stored before
parse(body, settings) → ParsedRequest                 its first step: the form

The HTTP API and OmniLLM both come through here, so both take and refuse the same.
"""

from __future__ import annotations

from omni_jobs.requests.admission import AdmittedRequest, Media, ParsedRequest, admit, parse
from omni_jobs.requests.deadline import cancel_after, check_deadline
from omni_jobs.requests.job_request import JobRequest

__all__ = [
    "AdmittedRequest",
    "JobRequest",
    "Media",
    "ParsedRequest",
    "admit",
    "cancel_after",
    "check_deadline",
    "parse",
]
