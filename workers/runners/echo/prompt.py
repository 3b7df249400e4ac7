"""``EchoPrompt``: the engine prompt of an echo stage."""

from typing import NamedTuple

from workers.runners.echo.parameters import EchoParameters


class EchoPrompt(NamedTuple):
    """The engine prompt of an echo stage, which has no model: it gives the text back, and as many bytes as asked."""

    text: str
    upstream_bytes: int  # of the payloads' tensors
    parameters: EchoParameters
    seed: int
    capture: bool
