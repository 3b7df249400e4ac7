"""A job's request: its form, and its admission by a pipeline.

parse(body, settings) → ParsedRequest              the body has the form of a JobRequest
admit(body, pipelines, settings) → AdmittedRequest  everything but the deadline is checked; nothing is stored before

The HTTP API and OmniLLM both admit requests here, so both accept and refuse the same.
"""

from omni_jobs.requests.admission import AdmittedRequest, Media, ParsedRequest, admit, parse
from omni_jobs.requests.cost import cost_of
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
    "cost_of",
    "parse",
]
