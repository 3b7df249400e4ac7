"""``Submission``: the one form in which a door hands a submit on to its admission, whatever came to the door."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from omni_jobs.requests.job_request import JobRequest
from omni_jobs.requests.json_body import canonical
from omni_jobs.tenants.caller import ANYONE, Caller


@dataclass(frozen=True, slots=True)
class Submission:
    """One submit, correct in form and not yet checked against its pipeline. Its admission makes a ``NewJob`` of it.

    request          what is asked for; media stand in it as ``Upload``s
    digest           the ``request_digest`` of what the client sent: a submit is the same again if this is equal
    size             how many bytes came, which decides for what it waits (``omni_jobs.intake.lanes``)
    caller           for whom the job is, and what it may ask for
    idempotency_key  the caller's name for this submit: sent again, the submit gives the same job
    expires_in_s     seconds from the submit on after which the job stops by itself (``Cancel-After``)
    fetched          the bytes of media that the request names by http or https URLs, by their places in it, such as
                     ``messages.0.content.1.image_url.url``; those that are missing are refused
    kept             JSON: what a view of the job has to know again of its request, and no stage reads
    """

    request: JobRequest
    digest: str
    size: int
    caller: Caller = ANYONE
    idempotency_key: str | None = None
    expires_in_s: float | None = None
    fetched: Mapping[str, bytearray] = field(default_factory=dict)
    kept: Mapping[str, Any] = field(default_factory=dict)


def request_digest(sent: Mapping[str, Any]) -> str:
    """Return the digest of what a client sent, JSON and Uploads, by which a submit that is repeated is known.

    Of a large body it takes as long as its parsing: call it once, where the body is parsed.
    """
    digest = hashlib.sha256()
    for piece in canonical(sent):
        digest.update(piece)
    return f"sha256:{digest.hexdigest()}"
