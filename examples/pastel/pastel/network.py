"""The network: two convolutions that say where the latents move, and one that turns latents into colours."""

import torch
from torch import nn

__all__ = ["CHANNELS", "SCALE", "PastelNetwork", "as_pixels"]

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

    def text(self, text: str) -> torch.Tensor:
        """Return the text's vector [width]."""
        vector: torch.Tensor = self.bytes(torch.tensor([list(text.encode())], device=self.time.device))[0]
        return vector

    def velocity(self, latents: torch.Tensor, times: torch.Tensor, texts: torch.Tensor) -> torch.Tensor:
        """Return where the latents move at each row's time, 0 (noise) to 1 (picture)."""
        given = texts + times[:, None] * self.time
        return self.out_of(torch.tanh(self.into(latents) + given[:, :, None, None]))

    def pixels(self, latents: torch.Tensor) -> torch.Tensor:
        """Return one row's latents [4, h, w] as uint8 [8h, 8w, 3]."""
        return as_pixels(nn.functional.pixel_shuffle(self.colours(latents[None]), SCALE)[0])

    def mean_colours(self) -> nn.Conv2d:
        """Return the linear map from a latent to the mean of its pixels' colours."""
        mean = nn.Conv2d(CHANNELS, 3, 1).to(self.time)
        mean.weight.data = self.colours.weight.data.unflatten(0, (3, -1)).mean(1)
        mean.bias.data = self.colours.bias.data.unflatten(0, (3, -1)).mean(1)
        return mean.requires_grad_(False)


def as_pixels(colours: torch.Tensor) -> torch.Tensor:
    """Return colours [3, H, W] of any size as uint8 [H, W, 3]."""
    return (torch.sigmoid(colours) * 255).round().to(torch.uint8).permute(1, 2, 0).contiguous()
