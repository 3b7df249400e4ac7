"""What both doors of a submit do, the single one and the bulk: requests are admitted, each with a place in the queue.

No submit waits for another's: a tokenizer that is being loaded is waited for on the event loop, what
takes long is admitted apart from what does not, and the database is asked outside both.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass

from anyio import CapacityLimiter
from anyio.to_thread import run_sync

from omni_jobs.api.services import Services
from omni_jobs.backlog import Place
from omni_jobs.errors import DecodersUnavailable, InvalidRequest, OmniJobsError, TooManyJobs
from omni_jobs.requests import Admitted, Parsed, admit, check_deadline, parse

__all__ = ["Wanted", "parsed", "take"]

_SMALL_BYTES = 16 << 10
_TINY_VALUES = 256


@dataclass(frozen=True, slots=True)
class Wanted:
    """A job that a client wants. ``size``: its body's bytes. ``expires_in_s``: what ``Cancel-After`` says."""

    parsed: Parsed
    size: int
    tenant: str
    idempotency_key: str | None
    expires_in_s: float | None
    prompt_embeds: bytes | None = None

    @property
    def has_media(self) -> bool:
        return not self.parsed.is_text and self.parsed.request.messages is not None

    @property
    def is_small(self) -> bool:
        return self.size <= _SMALL_BYTES and self.parsed.is_text and self.prompt_embeds is None


async def parsed(services: Services, body: bytes | bytearray) -> Parsed:
    """Raises InvalidRequest and RequestTooLarge naming the field."""
    if len(body) > _SMALL_BYTES:
        return await run_sync(parse, body, services.settings, limiter=services.admissions)
    if sum(body.count(mark) for mark in b",[{") > _TINY_VALUES:
        return await run_sync(parse, body, services.settings, limiter=services.small_admissions)
    return parse(body, services.settings)  # a thread would cost more


async def take(
    services: Services, wanted: Sequence[Wanted], stack: ExitStack, slots: CapacityLimiter | None = None
) -> list[tuple[Admitted, Place] | OmniJobsError]:
    """Each as it is admitted, with its place in the queue, or why it is refused; in their order. Several may share
    a place: it is ``taken`` when a job of them was made.

    The places are kept until ``stack`` is closed. ``slots``: a bulk's, which wait for one another; a single submit
    has those of its kind. Raises DatabaseUnavailable, and DecodersUnavailable where too many media wait.
    """
    for name in {each.parsed.request.model for each in wanted}:
        await services.renderer_loads.ready(name)
    if slots is None and all(each.is_small and not _has_model(services, each) for each in wanted):
        found = _admit_all(services, wanted)  # of microseconds: a thread would cost more
    else:
        found = await run_sync(_admit_all, services, wanted, limiter=slots or _slots(services, wanted))
    return await _placed(services, wanted, found, stack)


def _has_model(services: Services, wanted: Wanted) -> bool:
    pipeline = services.pipelines.get(wanted.parsed.request.model)
    return pipeline is not None and pipeline.model is not None


def _slots(services: Services, wanted: Sequence[Wanted]) -> CapacityLimiter:
    """Those that these wait in: apart, so that what is small waits for nothing large, and no text for media."""
    if any(each.has_media for each in wanted):
        if services.media_admissions.available_tokens < 1:
            raise DecodersUnavailable("too many submits wait for their media to be decoded")
        return services.media_admissions
    if all(each.is_small for each in wanted):
        return services.small_admissions
    return services.admissions


def _admit_all(services: Services, wanted: Sequence[Wanted]) -> list[Admitted | OmniJobsError]:
    found: list[Admitted | OmniJobsError] = []
    for each in wanted:
        try:
            found.append(_admit(services, each))
        except OmniJobsError as error:
            found.append(error)
    return found


def _admit(services: Services, wanted: Wanted) -> Admitted:
    admitted = admit(
        wanted.parsed,
        services.pipelines,
        services.settings,
        services.renderers,
        prompt_embeds=wanted.prompt_embeds,
        wall=services.wall,
    )
    if admitted.expires_at is not None and wanted.expires_in_s is not None:
        raise InvalidRequest("given, and Cancel-After as well", field="expires_at")
    return admitted


async def _placed(
    services: Services, wanted: Sequence[Wanted], found: Sequence[Admitted | OmniJobsError], stack: ExitStack
) -> list[tuple[Admitted, Place] | OmniJobsError]:
    """Places for all of a pipeline and tenant together, or else for each."""
    if services.backlog.is_old():
        await run_sync(services.backlog.refresh)
    scopes = Counter(
        (each.pipeline.name, one.tenant)
        for one, each in zip(wanted, found, strict=True)
        if not isinstance(each, OmniJobsError)
    )
    places: dict[tuple[str, str], Place] = {}
    for scope, number in scopes.items():
        with suppress(TooManyJobs):
            places[scope] = stack.enter_context(services.backlog.place(*scope, number))
    placed: list[tuple[Admitted, Place] | OmniJobsError] = []
    for one, each in zip(wanted, found, strict=True):
        if isinstance(each, OmniJobsError):
            placed.append(each)
            continue
        try:
            if each.expires_at is not None:
                check_deadline(each.expires_at, time.time())
            scope = each.pipeline.name, one.tenant
            place = places.get(scope) or stack.enter_context(services.backlog.place(*scope))
            placed.append((each, place))
        except (InvalidRequest, TooManyJobs) as error:
            # Sent again, a submit gives its job of the first time, however late it is and however much waits.
            key = one.idempotency_key
            known = key is not None and await run_sync(services.jobs.is_known, one.tenant, key)
            placed.append((each, Place()) if known else error)
    return placed
