"""``Preview``: the newest preview of a stage run, as its progress shows it."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


class Preview:
    """Encodes each new picture once, though every later report of progress carries it."""

    def __init__(self) -> None:
        self._picture: torch.Tensor | None = None
        self._url: str | None = None

    def url(self, picture: torch.Tensor | None) -> str | None:
        """Return a picture, uint8 [h, w, 3], as a data URL of a JPEG; None for None. Raises ModelError."""
        if picture is not self._picture:
            from workers.encoders.image import encode_image  # loads Pillow, which few stages need

            self._picture, self._url = picture, None
            if picture is not None:
                data = encode_image({"pixels": picture.numpy()}, {}, "jpeg")
                self._url = f"data:image/jpeg;base64,{base64.b64encode(data).decode()}"
        return self._url
