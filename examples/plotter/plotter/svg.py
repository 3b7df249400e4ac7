"""``encode_svg``: a curve as an SVG file."""

from collections.abc import Mapping
from html import escape
from typing import Any

import numpy as np

__all__ = ["encode_svg"]


def encode_svg(tensors: "Mapping[str, np.ndarray[Any, Any]]", values: Mapping[str, Any], format: str) -> bytes:
    """Return the file of ``points`` float32 [points, 2] and ``title``; the flow's contract has been checked."""
    line = " ".join(f"{x:.4f},{y:.4f}" for x, y in tensors["points"])
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="-1 -1 2 2">'
        f"<title>{escape(values['title'])}</title>"
        f'<polyline points="{line}" fill="none" stroke="black" stroke-width="0.005"/>'
        "</svg>\n"
    ).encode()
