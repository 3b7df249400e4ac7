"""The example model of examples/tinted: installed for a test, and its oracle."""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from workers.runners.ar.prompts import PromptSpan

EXAMPLE = Path(__file__).parents[2] / "examples" / "tinted"


def metadata(directory: Path, example: Path = EXAMPLE) -> Path:
    """What installing the example would leave of its pyproject.toml: a directory for ``sys.path``."""
    project = tomllib.loads((example / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found = directory / f"{project['name']}-{project['version']}.dist-info"
    found.mkdir(parents=True)
    head = f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    (found / "METADATA").write_text(head, encoding="utf-8")
    groups = project["entry-points"].items()
    lines = [line for group, entries in groups for line in (f"[{group}]", *(f"{k} = {v}" for k, v in entries.items()))]
    (found / "entry_points.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return directory


@dataclass(frozen=True)
class TintedResult:
    """What the oracle says and hands on."""

    token_ids: list[int]
    rows: torch.Tensor  # float32 [P + N - 1, H]


class TintedReference:
    """Transformers' Llama, its inputs tinted by hand, greedy, one prompt at a time."""

    def __init__(self, checkpoint: Path) -> None:
        from transformers import LlamaForCausalLM

        self.model: Any = LlamaForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()

    def embeds(self, prompt: Sequence[int]) -> torch.Tensor:
        """[P, H]."""
        with torch.inference_mode():
            return self.model.model.embed_tokens(torch.tensor(prompt)).clone()

    def generate(
        self,
        prompt: Sequence[int],
        information: Mapping[str, torch.Tensor],
        max_tokens: int,
        spans: Sequence[PromptSpan] = (),
    ) -> TintedResult:
        hidden, end = self.model.config.hidden_size, self.model.config.eos_token_id
        tint = information.get("tint", torch.zeros(hidden))
        drift = information.get("drift", torch.zeros(1, hidden))
        tokens: list[int] = []
        rows = []
        inputs, cache = self.embeds(prompt).clone(), None  # one that may be edited outside of the inference mode
        for span in spans:
            inputs[span.start : span.end] = span.rows
        inputs += tint
        with torch.inference_mode():
            while True:
                step = self.model.model(inputs_embeds=inputs[None], past_key_values=cache, use_cache=True)
                rows.append(step.last_hidden_state[0])
                tokens.append(int(self.model.lm_head(rows[-1][-1]).argmax()))
                if tokens[-1] == end or len(tokens) == max_tokens:
                    return TintedResult(tokens, torch.cat(rows))
                added = tint + drift[min(len(tokens) - 1, len(drift) - 1)]
                inputs, cache = self.embeds(tokens[-1:]) + added, step.past_key_values
