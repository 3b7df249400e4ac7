"""Payloads: the data that one stage hands to the next, encoded as a safetensors file with a manifest.

Any safetensors reader opens a payload (docs/payloads.md describes the format), but ``Payload.decode`` takes only
files with our manifest. Encoding copies no tensor: it returns a header and a view of each tensor. Decoding copies
none either: it checks the header, allocates memory for the header alone, and returns views of the buffer. Nothing
is ever unpickled.

A client's prompt embeddings are a plain safetensors file of one tensor, without a manifest:
``PromptEmbedsPayload.decode`` reads it.
"""

from omni_jobs.payloads.additional_information import AdditionalInformationPayload
from omni_jobs.payloads.head import PayloadHead, read_head
from omni_jobs.payloads.manifest import PAYLOAD_VERSION, Manifest
from omni_jobs.payloads.payload import Payload
from omni_jobs.payloads.prompt_embeds import PromptEmbedsPayload
from omni_jobs.payloads.tensor import FLOAT_DTYPES, Tensor

__all__ = [
    "FLOAT_DTYPES",
    "PAYLOAD_VERSION",
    "AdditionalInformationPayload",
    "Manifest",
    "Payload",
    "PayloadHead",
    "PromptEmbedsPayload",
    "Tensor",
    "read_head",
]
