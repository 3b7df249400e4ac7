"""The chart of deploy/kubernetes as Helm renders it, without a cluster; as a program, it writes the plain manifests."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import helm_python
import yaml

KUBERNETES = Path(__file__).parents[2] / "deploy" / "kubernetes"
CHART = KUBERNETES / "omni-jobs"
SAMPLES = ("cpu", "fleet", "one-gpu")
NAME = "omni-jobs"  # of the release and its namespace
HEADER = "# Rendered by scripts/render-manifests from the chart and values/{sample}.yaml.\n"


def sample_values(sample: str) -> dict[str, Any]:
    """Return the values of a sample."""
    text = (KUBERNETES / "values" / f"{sample}.yaml").read_text(encoding="utf-8")
    return dict(helm_python.values_from_yaml(text))


def rendered(values: Mapping[str, Any]) -> str:
    """Return all manifests as one text, ordered by template. Raises HelmError for values that the schema refuses."""
    with helm_python.Chart.load(CHART) as chart:
        found = chart.render(dict(values), name=NAME, namespace=NAME)
    parts = [found[template].strip() for template in sorted(found) if not template.endswith(".tpl")]
    return "".join(f"---\n{part.removeprefix('---').strip()}\n" for part in parts if part)


def manifests(text: str) -> list[dict[str, Any]]:
    """Return the objects of manifests."""
    return [found for found in yaml.safe_load_all(text) if found]


def main(arguments: list[str]) -> int:
    stale = []
    for sample in SAMPLES:
        path = KUBERNETES / "manifests" / f"{sample}.yaml"
        text = HEADER.format(sample=sample) + rendered(sample_values(sample))
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            stale.append(path.name)
            if "--check" not in arguments:
                path.write_text(text, encoding="utf-8")
    print("stale: " + ", ".join(stale) if stale else "up to date")
    return int(bool(stale) and "--check" in arguments)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
