"""The benchmarks with language models: a third of the time of all, so a file of their own, beside which others run."""

from pathlib import Path

import pytest

from tests.e2e.test_benchmarks import figures_of

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]


def test_the_main_job(tmp_path: Path) -> None:
    figures = figures_of(tmp_path, "main_job", "--jobs", "2", "--runs", "1")
    assert {"1 job, stack", "2 jobs, OmniLLM's time / the stack's", "memory of the stack, idle"} <= set(figures)


def test_the_runners(tmp_path: Path) -> None:
    figures = figures_of(tmp_path, "runners")
    assert {
        "a step's capture, 4 requests: time per request / batched",
        "4 requests, CPU time: capture on / capture off",
        "4 requests, time: capture on / Transformers, one batch",
    } <= set(figures)


def test_the_engine(tmp_path: Path) -> None:
    assert "the platform / the bare engine" in figures_of(tmp_path, "engine")


def test_remote(tmp_path: Path) -> None:
    figures = figures_of(tmp_path, "remote")
    names = {name for name, figure in figures.items() if figure["target"] == 0.95}
    assert {name.partition(" /")[0] for name in names} == {"the remote runner", "through the queue"}


def test_the_pipeline(tmp_path: Path) -> None:
    figures = figures_of(tmp_path, "pipeline")
    assert {"the platform's rate / OmniLLM's", "4 in one batch: first", "OmniLLM's rate / the bound's"} <= set(figures)
