"""The worst requests that were found, each as bytes made on the spot: for the tests and for ``benchmarks.hostile``."""

from __future__ import annotations

__all__: list[str] = []
