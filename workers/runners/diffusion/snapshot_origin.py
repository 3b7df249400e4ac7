"""``snapshot_origin``: what a diffusion engine says of itself in the snapshots that it takes."""

from collections.abc import Mapping
from typing import Any

from workers.stages.engine_args import OmniEngineArgs


def snapshot_origin(args: OmniEngineArgs) -> Mapping[str, Any]:
    """Return what two engines must have in common to hand on a snapshot; their models compare the rest."""
    model, weights = args.model, getattr(args.engine, "weights", None)
    return {
        "family": None if model is None else model.family,
        "component": None if model is None else model.component,
        "dtype": getattr(args.engine, "dtype", None),
        **({} if weights is None else {"weights": weights}),
    }
