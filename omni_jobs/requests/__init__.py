"""A job's request: its form, and its admission by a pipeline.

parse(body, settings) → Submission               the native form: JSON of a JobRequest
admit(submission, pipelines, settings) → NewJob  everything but the deadline is checked; nothing is stored before

The HTTP API and OmniLLM both admit requests here, so both accept and refuse the same. A door for another form makes its
own Submissions: a JobRequest, with Uploads for its media.
"""

from omni_jobs.requests.admission import admit
from omni_jobs.requests.content import links_of
from omni_jobs.requests.deadline import cancel_after, check_deadline
from omni_jobs.requests.fork import CHANGEABLE, Fork, admit_fork, parse_fork, submission_of
from omni_jobs.requests.job_request import JobRequest
from omni_jobs.requests.native import parse
from omni_jobs.requests.other_version import other_version
from omni_jobs.requests.submission import Submission, request_digest
from omni_jobs.requests.upload import Upload

__all__ = [
    "CHANGEABLE",
    "Fork",
    "JobRequest",
    "Submission",
    "Upload",
    "admit",
    "admit_fork",
    "cancel_after",
    "check_deadline",
    "links_of",
    "other_version",
    "parse",
    "parse_fork",
    "request_digest",
    "submission_of",
]
