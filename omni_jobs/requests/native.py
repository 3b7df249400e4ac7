"""The native form of a submit: the JSON of ``POST /v1/jobs``, which bulks and ``OmniLLM`` take as well."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from omni_jobs.errors import InvalidRequest
from omni_jobs.requests.job_request import JobRequest
from omni_jobs.requests.json_body import parse_body
from omni_jobs.requests.submission import Submission, request_digest
from omni_jobs.requests.upload import Upload
from omni_jobs.tenants.caller import ANYONE, Caller

if TYPE_CHECKING:
    from omni_jobs.settings import Settings


def parse(
    body: bytes | bytearray | Mapping[str, Any],
    settings: Settings,
    *,
    prompt_embeds: bytes | memoryview | None = None,
    caller: Caller = ANYONE,
    idempotency_key: str | None = None,
    expires_in_s: float | None = None,
) -> Submission:
    """Return the submission that a body in JSON is, or an object that JSON can hold.

    The body must not change while the result is used. ``prompt_embeds``: a safetensors file that came beside the body,
    taken as if it stood in the body. Raises InvalidRequest and RequestTooLarge naming the field.
    """
    written = _as_json(body) if isinstance(body, Mapping) else body
    sent = parse_body(written, settings.max_body_bytes, settings.max_text_bytes)
    is_given_twice = prompt_embeds is not None and sent.get("prompt_embeds") is not None
    if prompt_embeds is not None and not is_given_twice:
        sent["prompt_embeds"] = {"data": Upload(prompt_embeds)}
    request = JobRequest.parse(sent)
    if is_given_twice:
        raise InvalidRequest("given twice: in the request, and as a part of the body", field="prompt_embeds")
    size = len(written) + (0 if prompt_embeds is None else len(prompt_embeds))
    return Submission(request, request_digest(sent), size, caller, idempotency_key, expires_in_s)


def _as_json(body: Mapping[str, Any]) -> bytes:
    try:
        return json.dumps(dict(body)).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequest(f"the request is not JSON: {error}", field="body") from None
