"""Build a tiny checkpoint: ``python -m pastel.tiny_checkpoint DIRECTORY``. Its pictures are colourful noise."""

import argparse
import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from pastel.network import PastelNetwork

__all__ = ["build_tiny_checkpoint", "main"]

WIDTH = 16


def build_tiny_checkpoint(directory: Path, seed: int = 0) -> Path:
    """Write config.json and model.safetensors of random weights, and return the directory."""
    network = PastelNetwork(WIDTH)
    generator = torch.Generator().manual_seed(seed)
    for _, weight in sorted(network.named_parameters()):
        weight.data.normal_(std=0.1 if weight.ndim == 1 else weight[0].numel() ** -0.5, generator=generator)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps({"model_type": "pastel", "width": WIDTH}), encoding="utf-8")
    save_file(network.state_dict(), directory / "model.safetensors")
    return directory


def main() -> None:
    """Build the checkpoint that the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m pastel.tiny_checkpoint", description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    print(build_tiny_checkpoint(arguments.directory, arguments.seed))


if __name__ == "__main__":
    main()
