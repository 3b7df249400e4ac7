"""The family ``trees``: a diffusion model whose outputs are a tensor, a list and a dict, and one that reads them."""
