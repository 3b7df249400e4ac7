"""What stages hand on, as bytes: a manifest, named tensors and small values.

A payload is a safetensors file (docs/payloads.md): any safetensors reader opens it,
but only files with our manifest are read here. Encoding joins nothing: it yields a
header and views on the tensors. Decoding yields views on the buffer, after every
check; it takes memory for the header alone, and nothing is ever unpickled.

A client's prompt embeddings are a plain safetensors file instead, of one tensor:
``PromptEmbedsPayload.decode``.
"""

from __future__ import annotations

from omni_jobs.payloads.additional_information import AdditionalInformationPayload, TensorEntry
from omni_jobs.payloads.manifest import PAYLOAD_VERSION, Manifest
from omni_jobs.payloads.payload import Payload
from omni_jobs.payloads.prompt_embeds import PromptEmbedsPayload
from omni_jobs.payloads.tensor import FLOAT_DTYPES, INTEGER_DTYPES, Tensor
from omni_jobs.payloads.wire_limits import PayloadLimits

__all__ = [
    "FLOAT_DTYPES",
    "INTEGER_DTYPES",
    "PAYLOAD_VERSION",
    "AdditionalInformationPayload",
    "Manifest",
    "Payload",
    "PayloadLimits",
    "PromptEmbedsPayload",
    "Tensor",
    "TensorEntry",
]
