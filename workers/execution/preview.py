"""``Preview``: the newest preview of a stage run, as its progress shows it."""

from __future__ import annotations

import base64
import logging
from typing import TYPE_CHECKING, Any

import numpy as np

from omni_jobs.errors import ModelError

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

logger = logging.getLogger(__name__)


class Preview:
    """Encodes each new picture once, though every later report of progress carries it."""

    def __init__(self) -> None:
        self._picture: torch.Tensor | NDArray[Any] | None = None
        self._url: str | None = None

    def url(self, picture: torch.Tensor | NDArray[Any]) -> str | None:
        """Return a picture, uint8 [h, w, 3], as a data URL of a JPEG; None for one that cannot be encoded."""
        if picture is not self._picture:
            self._picture, self._url = picture, _url(picture)
        return self._url


def _url(picture: torch.Tensor | NDArray[Any]) -> str | None:
    from workers.encoders.image import encode_image  # loads Pillow, which few stages need

    try:
        data = encode_image({"pixels": np.asarray(picture)}, {}, "jpeg")
    except ModelError as error:
        logger.warning("no preview: %s", error)
        return None
    return f"data:image/jpeg;base64,{base64.b64encode(data).decode()}"
