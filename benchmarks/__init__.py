"""Benchmarks: ``python -m benchmarks.NAME --json FILE``; ratios of two sides alternating in one run."""
