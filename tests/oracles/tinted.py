"""The example model of tests/example_model: installed for a test, with a tiny checkpoint and its oracle."""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

EXAMPLE = Path(__file__).parents[1] / "example_model"
HIDDEN = 128
_END = 256

_TEMPLATE = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"


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


def build_checkpoint(directory: Path) -> Path:
    """A Llama of two layers over bytes, with its tokenizer, chat template and tints."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={symbol: n for n, symbol in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>", chat_template=_TEMPLATE)
    fast.save_pretrained(directory)
    config = LlamaConfig(
        vocab_size=_END + 1,
        hidden_size=HIDDEN,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=1024,
        bos_token_id=None,
        eos_token_id=_END,
    )
    generator = torch.Generator().manual_seed(0)
    with torch.random.fork_rng(devices=[]):
        model: Any = LlamaForCausalLM(config)
    for weight in (parameter.data for _, parameter in sorted(model.named_parameters()) if parameter.ndim > 1):
        weight.normal_(std=1.5 / weight[0].numel() ** 0.5, generator=generator)
    model.save_pretrained(directory)
    # Loud enough to change what is said.
    tints = {name: torch.randn(HIDDEN, generator=generator) * 0.3 for name in ("warm", "cold")}
    tints["drift"] = torch.randn(8, HIDDEN, generator=generator) * 0.3
    (directory / "tints").mkdir()  # vLLM takes every safetensors file beside config.json for weights
    save_file(tints, directory / "tints" / "tints.safetensors")
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

    def generate(self, prompt: Sequence[int], information: Mapping[str, torch.Tensor], max_tokens: int) -> TintedResult:
        tint = information.get("tint", torch.zeros(HIDDEN))
        drift = information.get("drift", torch.zeros(1, HIDDEN))
        tokens: list[int] = []
        rows = []
        inputs, cache = self.embeds(prompt) + tint, None
        with torch.inference_mode():
            while True:
                step = self.model.model(inputs_embeds=inputs[None], past_key_values=cache, use_cache=True)
                rows.append(step.last_hidden_state[0])
                tokens.append(int(self.model.lm_head(rows[-1][-1]).argmax()))
                if tokens[-1] == _END or len(tokens) == max_tokens:
                    return TintedResult(tokens, torch.cat(rows))
                added = tint + drift[min(len(tokens) - 1, len(drift) - 1)]
                inputs, cache = self.embeds(tokens[-1:]) + added, step.past_key_values
