"""What both doors of a submit do, the single one and the bulk: requests are admitted, each with a place in the queue.

No submit waits for another's: a tokenizer that is being loaded and a count of the backlog are waited for on the
event loop, and what takes long is admitted apart from what does not. A line of a bulk that has media waits for its
decoder outside the turns of the bulks, so that no bulk of text waits behind it.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass

from anyio import CapacityLimiter
from anyio.to_thread import run_sync

from omni_jobs.api.services import Services
from omni_jobs.errors import DecodersUnavailable, InvalidRequest, ModelMissing, OmniJobsError, TooManyJobs
from omni_jobs.intake.backlog import Place
from omni_jobs.requests import Admitted, Parsed, admit, check_deadline, parse

__all__ = ["Candidate", "parsed", "take", "take_group"]

_SMALL_BYTES = 16 << 10
_TINY_VALUES = 256


@dataclass(frozen=True, slots=True)
class Candidate:
    """A job that a client asks for, before it is admitted.

    ``size``: its body's bytes. ``expires_in_s``: what ``Cancel-After`` says.
    """

    parsed: Parsed
    size: int
    tenant: str
    idempotency_key: str | None
    expires_in_s: float | None
    prompt_embeds: bytes | None = None

    @property
    def pipeline(self) -> str:
        """The name that it gives; there may be none of it."""
        return self.parsed.request.model

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


# A single submit


async def take(services: Services, candidate: Candidate, stack: ExitStack) -> tuple[Admitted, Place]:
    """Admit a single submit. Its place in the queue is kept until ``stack`` is closed.

    Raises the error that it is refused with, and DatabaseUnavailable.
    """
    await services.renderer_loads.ready(candidate.pipeline)
    if candidate.is_small and not _has_model(services, candidate):
        admitted = _admit(services, candidate)  # of microseconds: a thread would cost more
    else:
        admitted = await run_sync(_admit, services, candidate, limiter=_limiter(services, candidate))
    if (count := services.backlog.keep_fresh()) is not None:
        await asyncio.wrap_future(count)
    try:
        return admitted, _place(services, candidate, admitted, stack)
    except (InvalidRequest, TooManyJobs):
        if await _is_known(services, candidate):
            return admitted, Place()
        raise


def _has_model(services: Services, candidate: Candidate) -> bool:
    pipeline = services.pipelines.get(candidate.pipeline)
    return pipeline is not None and pipeline.model is not None


def _limiter(services: Services, candidate: Candidate) -> CapacityLimiter:
    """What it waits for a turn of: apart, so that what is small waits for nothing large, and no text for media."""
    if candidate.has_media:
        if services.media_admissions.available_tokens < 1:
            raise DecodersUnavailable("too many submits wait for their media to be decoded")
        return services.media_admissions
    return services.small_admissions if candidate.is_small else services.admissions


# A group of a bulk's lines


async def take_group(
    services: Services, candidates: Sequence[Candidate], stack: ExitStack
) -> list[tuple[Admitted, Place] | OmniJobsError]:
    """Admit each, or say why it is refused; in their order.

    Several may share a place: it is ``taken`` when a job of them was made. The places are kept until ``stack`` is
    closed. Raises DatabaseUnavailable.
    """
    admissions = await _admit_group(services, candidates)
    if (count := services.backlog.keep_fresh()) is not None:
        await asyncio.wrap_future(count)
    shared = _shared_places(services, candidates, admissions, stack)
    taken: list[tuple[Admitted, Place] | OmniJobsError] = []
    for candidate, admitted in zip(candidates, admissions, strict=True):
        if isinstance(admitted, OmniJobsError):
            taken.append(admitted)
            continue
        place = shared.get((admitted.pipeline.name, candidate.tenant))
        try:
            if place is None:
                place = _place(services, candidate, admitted, stack)
            else:
                _check_deadline(admitted)
            taken.append((admitted, place))
        except (InvalidRequest, TooManyJobs) as error:
            known = await _is_known(services, candidate)
            taken.append((admitted, Place()) if known else _without_frames(error))
    return taken


async def _admit_group(services: Services, candidates: Sequence[Candidate]) -> list[Admitted | OmniJobsError]:
    """Texts in one turn of the bulks; media outside it, one after the other, because their decoders take seconds."""
    missing: dict[str, OmniJobsError] = {}
    for name in {candidate.pipeline for candidate in candidates}:
        try:
            await services.renderer_loads.ready(name)
        except ModelMissing as error:
            missing[name] = _without_frames(error)
    texts = [candidate for candidate in candidates if not candidate.has_media]
    admissions = await run_sync(_admit_all, services, texts, missing, limiter=services.bulks)
    if len(texts) == len(candidates):
        return admissions
    of_texts = iter(admissions)
    in_order: list[Admitted | OmniJobsError] = []
    for candidate in candidates:
        if candidate.has_media:
            in_order += await run_sync(_admit_all, services, [candidate], missing, limiter=services.media_admissions)
        else:
            in_order.append(next(of_texts))
    return in_order


def _admit_all(
    services: Services, candidates: Sequence[Candidate], missing: Mapping[str, OmniJobsError]
) -> list[Admitted | OmniJobsError]:
    admissions: list[Admitted | OmniJobsError] = []
    for candidate in candidates:
        try:
            admissions.append(missing.get(candidate.pipeline) or _admit(services, candidate))
        except OmniJobsError as error:
            admissions.append(_without_frames(error))
    return admissions


def _without_frames(error: OmniJobsError) -> OmniJobsError:
    """The error, fit to be kept in a list.

    The frames of its traceback, and of the error that it was raised for, lead to that list: a reference cycle,
    which would keep the whole bulk in memory until the collector comes.
    """
    error.__context__ = error.__cause__ = None
    return error.with_traceback(None)


def _shared_places(
    services: Services,
    candidates: Sequence[Candidate],
    admissions: Sequence[Admitted | OmniJobsError],
    stack: ExitStack,
) -> Mapping[tuple[str, str], Place]:
    """By pipeline and tenant, a place for all of them together, where there is room for all."""
    scopes = Counter(
        (admitted.pipeline.name, candidate.tenant)
        for candidate, admitted in zip(candidates, admissions, strict=True)
        if not isinstance(admitted, OmniJobsError)
    )
    places: dict[tuple[str, str], Place] = {}
    for scope, number in scopes.items():
        with suppress(TooManyJobs):
            places[scope] = stack.enter_context(services.backlog.place(*scope, number))
    return places


# Of both


def _admit(services: Services, candidate: Candidate) -> Admitted:
    admitted = admit(
        candidate.parsed,
        services.pipelines,
        services.settings,
        services.renderers,
        prompt_embeds=candidate.prompt_embeds,
        wall=services.wall,
    )
    if admitted.expires_at is not None and candidate.expires_in_s is not None:
        raise InvalidRequest("given, and Cancel-After as well", field="expires_at")
    return admitted


def _place(services: Services, candidate: Candidate, admitted: Admitted, stack: ExitStack) -> Place:
    """One of its own. Raises InvalidRequest for a deadline that has passed, TooManyJobs, DatabaseUnavailable."""
    _check_deadline(admitted)
    return stack.enter_context(services.backlog.place(admitted.pipeline.name, candidate.tenant))


def _check_deadline(admitted: Admitted) -> None:
    if admitted.expires_at is not None:
        check_deadline(admitted.expires_at, time.time())


async def _is_known(services: Services, candidate: Candidate) -> bool:
    """Whether its key names a job: sent again, a submit gives it, however late it is and however much waits."""
    key = candidate.idempotency_key
    return key is not None and await run_sync(services.jobs.is_known, candidate.tenant, key)
