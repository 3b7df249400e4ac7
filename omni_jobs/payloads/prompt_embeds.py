"""Prompt embeddings: rows that replace a prompt's own, from a stage's payload or from a client's file.

A client's file is any safetensors file of exactly one tensor, ``prompt_embeds``. Its metadata are checked to be
text and not used.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from omni_jobs.errors import PayloadCorrupt, PayloadError
from omni_jobs.payloads.header_json import check_text
from omni_jobs.payloads.refusals import as_decode_error, brief
from omni_jobs.payloads.safetensors_file import METADATA, encode_header, read_tensors, split_file
from omni_jobs.payloads.tensor import FLOAT_DTYPES, Tensor

if TYPE_CHECKING:
    from typing_extensions import Buffer

PROMPT_EMBEDS: Final = "prompt_embeds"


@dataclass(frozen=True, slots=True)
class PromptEmbedsPayload:
    """Prompt embeddings: one tensor [tokens, hidden size] of a float dtype.

    key    the payload's key in the object store, for errors
    stage  the stage that reads it, for errors

    Raises PayloadError, naming the field ``prompt_embeds.shape`` or ``prompt_embeds.dtype``, for another tensor.
    """

    embeds: Tensor
    key: str | None = field(default=None, compare=False)
    stage: str | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if len(self.embeds.shape) != 2:
            raise PayloadError(f"rank {len(self.embeds.shape)}, not 2", field=f"{PROMPT_EMBEDS}.shape")
        if self.embeds.dtype not in FLOAT_DTYPES:
            raise PayloadError(f"{self.embeds.dtype} is not a float dtype", field=f"{PROMPT_EMBEDS}.dtype")

    def encode(self) -> bytes:
        """Return the embeddings as the bytes of a safetensors file with one tensor, ``prompt_embeds``."""
        return b"".join([encode_header([(PROMPT_EMBEDS, self.embeds)], None), self.embeds.data])

    @classmethod
    def decode(cls, buffer: Buffer, max_bytes: int, *, key: str | None = None) -> PromptEmbedsPayload:
        """Return the embeddings of a client's safetensors file, checked: a view, which keeps the buffer alive.

        Raises PayloadTooLarge or PayloadCorrupt, naming the field ``prompt_embeds`` or one within it. The numbers are
        not checked here, because that reads every byte: see ``check_finite``.
        """
        try:
            header, data = split_file(buffer, max_bytes)
            _check_metadata(header.pop(METADATA, {}))
            if PROMPT_EMBEDS not in header:
                raise PayloadCorrupt("missing: the file has no tensor of that name", field=PROMPT_EMBEDS)
            tensors = read_tensors(header, data, is_name=PROMPT_EMBEDS.__eq__)
            return cls(tensors[PROMPT_EMBEDS], key=key)
        except PayloadError as error:
            raise as_decode_error(error, key=key, within=PROMPT_EMBEDS) from error

    def check_finite(self) -> None:
        """Raise PayloadCorrupt if an embedding holds an infinity or a NaN, which would spread through a batch."""
        if not self.embeds.is_finite():
            raise PayloadCorrupt("an element is not finite", field=PROMPT_EMBEDS, key=self.key, stage=self.stage)


def _check_metadata(metadata: object) -> None:
    if not isinstance(metadata, dict):
        raise PayloadCorrupt("not an object of texts", field=METADATA)
    for name, text in metadata.items():
        if not isinstance(text, str):
            raise PayloadCorrupt(f"{brief(name)} is not a text", field=METADATA)
        check_text(name, METADATA)
        check_text(text, METADATA)
