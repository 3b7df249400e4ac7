"""The head of a payload: its manifest, and the dtype and shape of each tensor, read without the tensors themselves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from omni_jobs.errors import PayloadError
from omni_jobs.payloads.manifest import Manifest, load_manifest
from omni_jobs.payloads.payload import MANIFEST, is_tensor_name, read_metadata
from omni_jobs.payloads.refusals import as_decode_error
from omni_jobs.payloads.safetensors_file import METADATA, TensorHead, read_header, read_tensor_heads


@dataclass(frozen=True, slots=True)
class PayloadHead:
    """The head of a payload. The tensors are in the order of the file."""

    manifest: Manifest
    tensors: Sequence[TensorHead]


def read_head(
    read: Callable[[int, int], bytes], size: int, *, key: str | None = None, stage: str | None = None
) -> PayloadHead:
    """Return the head of a payload of ``size`` bytes, of which ``read`` returns those from one place up to another.

    At most the header is read, 1 MiB. Each tensor's dtype and shape are checked, and not where its bytes stand. Raises
    PayloadTooLarge or PayloadCorrupt, naming the field, ``key`` and ``stage``, and what ``read`` raises.
    """
    try:
        header = read_header(read, size)
        metadata = read_metadata(header.pop(METADATA, None))
        manifest = load_manifest(metadata[MANIFEST])
        return PayloadHead(manifest, read_tensor_heads(header, is_name=is_tensor_name))
    except PayloadError as error:
        raise as_decode_error(error, key=key, stage=stage) from error
