"""The network: two convolutions that say where the latents move, and one that turns latents into colours."""

import torch
from torch import nn

__all__ = ["CHANNELS", "SCALE", "PastelNetwork"]

CHANNELS = 4  # of the latents
SCALE = 8  # pixels of a side for each latent of it


class PastelNetwork(nn.Module):
    """Moves latents [B, 4, h, w] and decodes them; ``width`` is the number of values in between."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.bytes = nn.EmbeddingBag(256, width, mode="mean")  # of a text's UTF-8
        self.time = nn.Parameter(torch.zeros(width))
        self.into = nn.Conv2d(CHANNELS, width, 3, padding=1)
        self.out_of = nn.Conv2d(width, CHANNELS, 3, padding=1)
        self.colours = nn.Conv2d(CHANNELS, 3 * SCALE * SCALE, 1)

    def texts(self, texts: list[str]) -> torch.Tensor:
        """Return the texts' vectors [B, width]."""
        device = self.time.device
        return torch.cat([self.bytes(torch.tensor([list(text.encode())], device=device)) for text in texts])

    def velocity(self, latents: torch.Tensor, time: float, texts: torch.Tensor) -> torch.Tensor:
        """Return where the latents move at ``time``, 0 (noise) to 1 (picture)."""
        given = texts + time * self.time
        return self.out_of(torch.tanh(self.into(latents) + given[:, :, None, None]))

    def pixels(self, latents: torch.Tensor) -> torch.Tensor:
        """Return one row's latents [4, h, w] as uint8 [8h, 8w, 3]."""
        colours = torch.sigmoid(nn.functional.pixel_shuffle(self.colours(latents[None]), SCALE)[0])
        return (colours * 255).round().to(torch.uint8).permute(1, 2, 0).contiguous()
