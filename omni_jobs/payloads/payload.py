"""A payload: the output of one stage run, encoded as buffers or a file, decoded from a buffer or a mapped file."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final

from omni_jobs.errors import PayloadCorrupt, PayloadError, PayloadTooLarge
from omni_jobs.files import map_file, new_file, translate_os_errors, write_all
from omni_jobs.payloads.additional_information import (
    TENSORS,
    AdditionalInformationPayload,
    dump_structure,
    dump_values,
    flatten,
    is_flat_name,
    load_structure,
    load_values,
)
from omni_jobs.payloads.header_json import check_text
from omni_jobs.payloads.manifest import Manifest, dump_manifest, load_manifest
from omni_jobs.payloads.prompt_embeds import PROMPT_EMBEDS, PromptEmbedsPayload
from omni_jobs.payloads.refusals import as_decode_error, brief
from omni_jobs.payloads.safetensors_file import METADATA, encode_header, in_file_order, read_tensors, split_file
from omni_jobs.payloads.tensor import Tensor
from omni_jobs.payloads.wire_limits import MAX_TENSORS

if TYPE_CHECKING:
    from typing_extensions import Buffer

MANIFEST: Final = "omni_jobs.manifest"
"""The name of the manifest in a file's metadata."""

_STRUCTURE: Final = "omni_jobs.structure"
_VALUES: Final = "omni_jobs.values"


@dataclass(frozen=True)
class Payload:
    """The output of one stage run: a manifest, and prompt embeddings, additional information, or both."""

    manifest: Manifest
    prompt_embeds: PromptEmbedsPayload | None = None
    additional_information: AdditionalInformationPayload | None = None

    @property
    def key(self) -> str | None:
        """The payload's key in the object store, for errors; None if it was not read from there."""
        parts = (self.additional_information, self.prompt_embeds)
        return next((part.key for part in parts if part is not None), None)

    # Encoding

    def buffers(self) -> list[memoryview]:
        """Return the encoded payload: its header, then a view of each tensor that is not empty. Copies no tensor.

        Raises PayloadError for names, values or sizes that a reader would refuse.
        """
        return [memoryview(self._header), *(tensor.data for _, tensor in self._in_file_order if tensor.nbytes)]

    @cached_property
    def nbytes(self) -> int:
        """The size of the encoded payload, in bytes. Raises PayloadError if no reader would take it."""
        return len(self._header) + self.tensor_bytes

    @property
    def tensor_bytes(self) -> int:
        """The size of all tensors, without the header, in bytes. Raises PayloadError for a bad name or too many."""
        return sum(tensor.nbytes for _, tensor in self._in_file_order)

    def write(self, path: Path) -> int:
        """Write the payload to a file, whole or not at all, and return its size in bytes. The file is not synced.

        Raises PayloadError as ``buffers`` does, and StorageUnavailable.
        """
        with translate_os_errors("writing the payload", str(path)), new_file(path) as file:
            return write_all(file.fileno(), self.buffers())

    @cached_property
    def _header(self) -> bytes:
        metadata = {MANIFEST: dump_manifest(self.manifest)}
        if self.additional_information is not None:
            metadata[_STRUCTURE] = dump_structure(self.additional_information.tensors)
            metadata[_VALUES] = dump_values(self.additional_information.values)
        return encode_header(self._in_file_order, metadata)

    @cached_property
    def _in_file_order(self) -> list[tuple[str, Tensor]]:
        named: list[tuple[str, Tensor]] = []
        if self.prompt_embeds is not None:
            named.append((PROMPT_EMBEDS, self.prompt_embeds.embeds))
        if self.additional_information is not None:
            named += flatten(self.additional_information.tensors)
        if len(named) > MAX_TENSORS:
            raise PayloadTooLarge(f"{len(named)} tensors, at most {MAX_TENSORS}", field=TENSORS)
        return in_file_order(named)

    # Decoding

    @classmethod
    def open(cls, path: Path, max_bytes: int, *, key: str | None = None, stage: str | None = None) -> Payload:
        """Map a payload's file into memory and decode it; the mapping lives as long as one of the tensors.

        Nobody may truncate or change the file meanwhile, because the tensors are views of it: a writer replaces it
        as a whole. Raises PayloadTooLarge or PayloadCorrupt, and StorageUnavailable if it is missing or unreadable.
        """
        key = key or str(path)
        with translate_os_errors("opening the payload", key):
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                mapped = map_file(fd, os.fstat(fd).st_size)
            finally:
                os.close(fd)
        return cls.decode(mapped, max_bytes, key=key, stage=stage)

    @classmethod
    def decode(cls, buffer: Buffer, max_bytes: int, *, key: str | None = None, stage: str | None = None) -> Payload:
        """Return the payload that ``buffer`` holds, checked. Its tensors are views, which keep the buffer alive.

        Raises PayloadTooLarge or PayloadCorrupt, naming the field, ``key`` and ``stage``.
        """
        try:
            header, data = split_file(buffer, max_bytes)
            metadata = read_metadata(header.pop(METADATA, None))
            manifest = load_manifest(metadata[MANIFEST])
            tensors = read_tensors(header, data, is_name=is_tensor_name)
            embeds = tensors.pop(PROMPT_EMBEDS, None)
            prompt_embeds = None if embeds is None else PromptEmbedsPayload(embeds, key=key, stage=stage)
            information = None
            if _STRUCTURE in metadata or _VALUES in metadata:
                entries = load_structure(metadata.get(_STRUCTURE, "{}"), tensors)
                values = load_values(metadata.get(_VALUES, "{}"))
                information = AdditionalInformationPayload(entries, values, key=key, stage=stage)
            if tensors:
                raise PayloadCorrupt("the structure does not mention this tensor", field=next(iter(tensors)))
            return cls(manifest, prompt_embeds, information)
        except PayloadError as error:
            raise as_decode_error(error, key=key, stage=stage) from error


def is_tensor_name(name: str) -> bool:
    """Return whether a payload's file may have a tensor of this name."""
    return name == PROMPT_EMBEDS or is_flat_name(name)


def read_metadata(metadata: object) -> dict[str, str]:
    """Return the metadata of a payload's file, checked: the manifest is there. Raises PayloadCorrupt."""
    if not isinstance(metadata, dict) or MANIFEST not in metadata:
        raise PayloadCorrupt("not a payload of omni-jobs: a safetensors file without our manifest", field="manifest")
    for name, text in metadata.items():
        if name not in (MANIFEST, _STRUCTURE, _VALUES):
            raise PayloadCorrupt(f"{brief(name)} is unknown", field=METADATA)
        if not isinstance(text, str):
            raise PayloadCorrupt("not text", field=name.removeprefix("omni_jobs."))
        check_text(text, name.removeprefix("omni_jobs."))
    return metadata
