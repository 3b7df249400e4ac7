"""``SubmitRequest``: a submit as a route hands it to ``Intake``: the unparsed body, and the values of headers."""

from dataclasses import dataclass

from omni_jobs.identity import DEFAULT_TENANT
from omni_jobs.tenants.tenant_limits import NO_LIMITS, Limits


@dataclass(frozen=True, slots=True)
class SubmitRequest:
    """One submit of a client, before it is admitted. ``Intake`` makes a job of it.

    body             JSON of a JobRequest; must not change until the request is answered
    prompt_embeds    a safetensors file that came beside the body
    tenant           the tenant that the job belongs to
    limits           what bounds the tenant's jobs beside the settings
    may_be_high      whether the job may have high priority
    idempotency_key  the client's name for this submit: sent again, the submit gives the same job
    expires_in_s     seconds from the submit on after which the job stops by itself (``Cancel-After``)
    """

    body: bytes | bytearray
    prompt_embeds: bytes | None = None
    tenant: str = DEFAULT_TENANT
    limits: Limits = NO_LIMITS
    may_be_high: bool = True
    idempotency_key: str | None = None
    expires_in_s: float | None = None
