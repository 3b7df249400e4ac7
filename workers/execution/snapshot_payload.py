"""A snapshot as a payload: its tensors and values, and the origin by which another worker knows whether to use it."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from omni_jobs.errors import PayloadCorrupt, PayloadError
from omni_jobs.jobs import Claim, StoredSnapshot
from omni_jobs.payloads import AdditionalInformationPayload, Manifest, Payload, Tensor
from workers.stages.types import Snapshot, convert_tensors

if TYPE_CHECKING:
    import torch
    from typing_extensions import Buffer

_KIND: Final = "snapshot"  # in the manifest, where the kind of a stage's output is its flow
_FORMAT: Final = 1  # raised when a value gets another meaning


def encode_snapshot(snapshot: Snapshot, claim: Claim, origin: Mapping[str, Any]) -> Payload:
    """Return the payload of a snapshot that the claim's attempt took.

    ``origin``: JSON values that must be the same for whoever goes on from it. Raises PayloadError for tensors or values
    that no payload can hold.
    """
    values = {
        "format": _FORMAT,
        "origin": {**origin, "seed": claim.seed},
        "steps_done": snapshot.steps_done,
        "values": dict(snapshot.values),
    }
    return Payload(
        manifest=Manifest(kind=_KIND, job_id=claim.job_id, stage=claim.stage, attempt=claim.attempt),
        additional_information=AdditionalInformationPayload(convert_tensors(snapshot.tensors, _from_torch), values),
    )


def decode_snapshot(
    data: "Buffer", claim: Claim, stored: StoredSnapshot, origin: Mapping[str, Any], max_bytes: int
) -> Snapshot:
    """Return a snapshot of the claim's stage run, whose object holds ``data``; its tensors are read-only views of it.

    Raises PayloadError naming the field, also when it is of another stage run, format, origin or seed.
    """
    payload = Payload.decode(data, max_bytes, key=stored.ref.key, stage=claim.stage)
    manifest, information = payload.manifest, payload.additional_information
    if information is None:
        raise PayloadCorrupt("it has no values", field="values")
    expected = {"kind": _KIND, "job_id": claim.job_id, "stage": claim.stage, "attempt": stored.attempt}
    for name, value in expected.items():
        if getattr(manifest, name) != value:
            raise PayloadError(f"{getattr(manifest, name)!r}, not {value!r}", field=f"manifest.{name}")
    if (format_ := information.value("format", int)) != _FORMAT:
        raise PayloadError(f"{format_}, only {_FORMAT} is known", field="values.format")
    theirs = information.value("origin", dict)
    for name, value in {**origin, "seed": claim.seed}.items():
        if name not in theirs or theirs[name] != value:
            raise PayloadError(f"it was saved with {theirs.get(name)!r}, not {value!r}", field=f"values.origin.{name}")
    steps_done = information.value("steps_done", int)
    if steps_done != stored.steps_done:
        raise PayloadCorrupt(f"{steps_done}, not {stored.steps_done} as recorded", field="values.steps_done")
    tensors = convert_tensors(information.tensors, _to_torch)
    return Snapshot(tensors, information.value("values", dict), steps_done)


# A worker whose snapshots hold no tensors never imports torch.


def _from_torch(tensor: "torch.Tensor") -> Tensor:
    from workers.stages.tensors import from_torch

    return from_torch(tensor)


def _to_torch(tensor: Tensor) -> "torch.Tensor":
    from workers.stages.tensors import to_torch

    return to_torch(tensor)
