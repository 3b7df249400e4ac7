"""``need_of``: what a stage takes of a card's memory, reckoned from the headers and configs of its checkpoint."""

import json
import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from omni_jobs.errors import ConfigError
from omni_jobs.pipelines.declarations import CardMemory
from omni_jobs.pipelines.stage_config import Pipeline, StageConfig
from omni_jobs.prompts.checkpoint_files import positive, read_json

_DRIVER_BYTES: Final = 500_000_000  # CUDA's context of a process
_BYTES_OF_DTYPE: Final = {"float32": 4, "float": 4, "bfloat16": 2, "float16": 2, "half": 2}
_FLOATS: Final = {"F64", "F32", "F16", "BF16"}  # what a dtype converts; quantized weights stay as they are
_BITS: Final = {"F64": 64, "F32": 32, "F16": 16, "BF16": 16, "I64": 64, "I32": 32, "I16": 16, "U64": 64, "U32": 32}
_BLOCK: Final = re.compile(r"(\w+/)?\w+\.\d+\.")  # a block's name among those of weights, behind their folder
_BLOCKS_AT_A_TIME: Final = 2  # of an offloaded model: the one that computes, and the next
_MOST_HEADER_BYTES: Final = 100_000_000  # as safetensors itself reads
_OF_QUANTIZED: Final = 8  # the bits of every other dtype: F8, I8, U8, BOOL


@dataclass(frozen=True, slots=True)
class CardNeed:
    """What a stage takes of each of its cards, in bytes.

    context_tokens  the tokens of the one context that its keys and values have room for at least; 0: it keeps none
    cards           how many it uses (its ranks)
    share           the part of a card that the stage config gives its engine; None: it takes what it needs
    takes_share     whether its engine takes a share whole and at once, for more keys and values, as vLLM's do
    """

    pipeline: str
    stage: str
    weights_bytes: int
    context_bytes: int
    context_tokens: int
    work_bytes: int
    cards: int
    share: float | None
    takes_share: bool

    @property
    def bytes(self) -> int:
        """All that it takes of a card."""
        return self.weights_bytes + self.context_bytes + self.work_bytes + _DRIVER_BYTES


def need_of(pipeline: Pipeline, stage: StageConfig, directory: Path) -> CardNeed | None:
    """Return what a stage takes of a card with this checkpoint; None for one that runs on no card.

    The weights and a context's keys and values are counted, the work is the declaration's estimate. Raises ConfigError
    for a file that is missing or cannot be read.
    """
    if not stage.runner.torch or stage.device == "cpu" or stage.model is None:
        return None
    component = stage.component_declaration
    memory = (None if component is None else component.memory) or CardMemory()
    engine = stage.engine_settings.on("cuda")
    dtype = getattr(engine, "dtype", None)
    weight_bytes = _BYTES_OF_DTYPE.get(str(dtype), memory.auto_bytes)
    tokens, context = 0, 0
    if memory.context:
        tokens, context = _context(memory, directory, engine)
        context *= 1 if "fp8" in str(getattr(engine, "kv_cache_dtype", "")) else weight_bytes
    return CardNeed(
        pipeline=pipeline.name,
        stage=stage.name,
        weights_bytes=_on_card(memory, directory, weight_bytes, engine) // engine.weight_parts
        + _of_adapters(memory, engine, weight_bytes),
        context_bytes=context // engine.weight_parts,
        context_tokens=tokens,
        work_bytes=memory.work_bytes,
        cards=engine.cards,
        share=getattr(engine, "gpu_memory_utilization", None),
        takes_share=bool(memory.context),
    )


def _on_card(memory: CardMemory, directory: Path, value_bytes: int, engine: Any) -> int:
    """Return the bytes of all weights that are on a card at a time. Raises ConfigError as ``_weights`` does."""
    compact_bytes = 1 if getattr(engine, "weights", None) == "float8" else value_bytes
    rest, blocks = 0, Counter[str]()
    for name, size in _weights(memory, directory, value_bytes):
        is_compact = name.startswith(memory.compact)
        size = size * compact_bytes // value_bytes if is_compact else size
        block = _BLOCK.match(name) if is_compact else None
        if block is None or not getattr(engine, "offload_blocks", False):
            rest += size
        else:
            blocks[block[0]] += size
    return rest + _BLOCKS_AT_A_TIME * max(blocks.values(), default=0)


def _of_adapters(memory: CardMemory, engine: Any, value_bytes: int) -> int:
    """Return the bytes of the LoRA adapters that the stage lists, as far as their files are here.

    They lie in an adapter's directory, or in folders of it that are named as those of the weights. Raises ConfigError
    naming the adapter and the file for one whose header cannot be read.
    """
    folders = {"", *(each.rpartition("/")[0] for each in memory.weights)}
    values = 0
    for name, directory in getattr(engine, "lora_modules", {}).items():
        for file in (file for folder in folders for file in (Path(directory) / folder).glob("*.safetensors")):
            try:
                values += sum(count for _, count in _tensors(file).values())
            except ConfigError as error:
                raise ConfigError(str(error), field=f"engine.lora_modules.{name}") from error
    return values * value_bytes


def _weights(memory: CardMemory, directory: Path, value_bytes: int) -> Iterator[tuple[str, int]]:
    """Yield name and bytes on a card of each weight that is loaded. Raises ConfigError where there is none."""
    found = False
    for folder in sorted({each.rpartition("/")[0] for each in memory.weights}):
        files = sorted((directory / folder).glob("*.safetensors"))
        if any(file.name.startswith("model") for file in files):  # Mistral's checkpoints have the same weights twice
            files = [file for file in files if not file.name.startswith("consolidated")]
        for file in files:
            for name, (dtype, values) in _tensors(file).items():
                whole = f"{folder}/{name}" if folder else name
                if whole.startswith(memory.weights) and not whole.startswith(memory.without or ("\0",)):
                    found = True
                    yield whole, values * (value_bytes if dtype in _FLOATS else _BITS.get(dtype, _OF_QUANTIZED) // 8)
        for file in () if files else sorted((directory / folder).glob("*.gguf")):
            found = True
            yield file.name, file.stat().st_size  # its weights stay as they are
    if not found:
        raise ConfigError(f"no weights {' or '.join(memory.weights)}… in *.safetensors", file=str(directory))


def _tensors(file: Path) -> dict[str, tuple[str, int]]:
    """Return the dtype and the number of values of each tensor of a safetensors file, from its header alone."""
    try:
        with file.open("rb") as opened:
            length = int.from_bytes(opened.read(8), "little")
            if length > _MOST_HEADER_BYTES:
                raise ValueError(f"a header of {length:,} bytes")
            header = json.loads(opened.read(length))
        return {
            name: (str(each["dtype"]), math.prod(map(int, each["shape"])))
            for name, each in header.items()
            if name != "__metadata__"
        }
    except (OSError, AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"the header of its weights cannot be read: {error}", file=str(file)) from error


def _context(memory: CardMemory, directory: Path, engine: Any) -> tuple[int, int]:
    """Return the tokens of a whole context, and the number of its keys and values."""
    name, *keys = memory.context
    file = str(directory / name)
    config: Any = read_json(directory / name)
    for key in keys:
        config = config.get(key) if isinstance(config, dict) else None
    if isinstance(config, dict) and "num_hidden_layers" not in config and isinstance(config.get("text_config"), dict):
        config = config["text_config"]
    if not isinstance(config, dict):
        raise ConfigError("no such part", file=file, field=".".join(keys))
    tokens = getattr(engine, "max_model_len", None) or positive(config, ["max_position_embeddings"], file)
    heads = positive(config, ["num_attention_heads"], file)
    width = config.get("head_dim") or positive(config, ["hidden_size"], file) // heads
    kept = 2 * positive(config, ["num_hidden_layers"], file) * (config.get("num_key_value_heads") or heads) * width
    return tokens, tokens * kept
