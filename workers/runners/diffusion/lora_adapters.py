"""``LoraAdapters``: the LoRA adapters of a diffusion model's network, of which each row of a forward has one or none.

PEFT computes them: it adds a row's own low-rank product to the outputs of the linear layers, and leaves the weights as
they are. So rows with other adapters, and rows without, are in one forward.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError, safe_open

from omni_jobs.errors import ConfigError, ModelError
from omni_jobs.prompts.checkpoint_files import check_checkpoint
from workers.runners.diffusion.saved_row import fingerprint_of_weights
from workers.runners.lora_modules import PEFT_CONFIG, PEFT_WEIGHTS, peft_config

_DIFFUSERS_WEIGHTS: Final = "pytorch_lora_weights.safetensors"
_DIFFUSERS_CONFIG: Final = "lora_adapter_metadata"  # in the header of those
_PREFIXES: Final = ("base_model.model.", "transformer.")  # of PEFT's names, and of Diffusers'
_DOWN, _UP = ".lora_A.weight", ".lora_B.weight"
_BASE: Final = "__base__"  # PEFT's name of a row without an adapter
_SETTINGS: Final = ("r", "lora_alpha", "rank_pattern", "alpha_pattern", "use_rslora")  # that decide how much is added
_ONLY: Final[Mapping[str, Any]] = {"peft_type": "LORA", "use_dora": False, "bias": "none", "modules_to_save": None}


class LoraAdapters:
    """The adapters of one network, by name; at first there are none. For one thread."""

    def __init__(self) -> None:
        self._identities: dict[str, str] = {}
        self._names: dict[str, str] = {}  # an operator's name → PEFT's, in which no dot may be
        self._rows: list[str] = []  # PEFT's names of the rows of the forward under way

    def load(self, network: torch.nn.Module, directories: Mapping[str, str], dtype: torch.dtype) -> None:
        """Add the adapters in these directories to the network, to be computed in ``dtype``.

        Raises ConfigError naming the module and the file for one that is no LoRA adapter of this network, and where
        PEFT is not installed.
        """
        try:
            from peft.tuners.lora import LoraLayer
        except ImportError as error:
            message = f"LoRA adapters need PEFT: pip install 'omni-jobs[pictures]' ({error})"
            raise ConfigError(message, field="engine.lora_modules") from error
        linear = {name: each for name, each in network.named_modules() if isinstance(each, torch.nn.Linear)}
        for name, directory in directories.items():
            try:
                self._load(network, linear, name, Path(directory), dtype)
            except ConfigError as error:
                raise ConfigError(str(error), field=f"engine.lora_modules.{name}") from error
        network.eval().requires_grad_(False)
        for layer in network.modules():
            if isinstance(layer, LoraLayer):
                layer.register_forward_pre_hook(self._name_rows, with_kwargs=True)

    def _load(
        self,
        network: torch.nn.Module,
        linear: Mapping[str, torch.nn.Linear],
        name: str,
        directory: Path,
        dtype: torch.dtype,
    ) -> None:
        from peft import LoraConfig, inject_adapter_in_model, set_peft_model_state_dict
        from peft.tuners.lora import LoraLayer

        check_checkpoint(directory)
        adapter = _Adapter.read(directory)
        adapter.check(linear)
        inner = f"a{len(self._names)}"
        config = LoraConfig(target_modules=adapter.modules, **adapter.settings)
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "Already found a `peft_config`")  # several adapters are meant
                inject_adapter_in_model(config, network, inner)
            for layer in network.modules():
                if isinstance(layer, LoraLayer) and inner in layer.lora_A:
                    for part in (layer.lora_A, layer.lora_B):
                        part[inner].to(dtype)  # PEFT gives them that of the layer's weight, which may be float8
            set_peft_model_state_dict(network, adapter.weights, inner)
        except (RuntimeError, ValueError) as error:  # of ranks that the settings do not tell
            raise ConfigError(f"PEFT cannot load it: {error}", file=str(adapter.file)) from error
        self._names[name] = inner
        self._identities[name] = fingerprint_of_weights(adapter.weights)

    def check(self, name: str | None) -> None:
        """Raise ModelError for a name that no adapter has. None: the model as it is."""
        check_name(name, self._names)

    def identity(self, name: str | None) -> str | None:
        """Return what tells an adapter's weights from others'; None for the model as it is, and for no adapter here."""
        return None if name is None else self._identities.get(name)

    @contextmanager
    def rows(self, names: Sequence[str | None]) -> Iterator[None]:
        """Let the forwards within have these adapters, row by row; their tensors have the rows in this order.

        A row with a name that no adapter here has is one of the model as it is.
        """
        self._rows = [_BASE if name is None else self._names.get(name, _BASE) for name in names]
        try:
            yield
        finally:
            self._rows = []

    def _name_rows(self, layer: Any, args: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Tell a layer its rows. A layer may see all of them several times, one after the other."""
        rows = self._rows or [_BASE]
        return args, {**named, "adapter_names": rows * (len(args[0]) // len(rows))}


def check_name(name: str | None, names: Collection[str]) -> None:
    """Raise ModelError for a name that is not among the adapters'. None: the model as it is."""
    if name is not None and name not in names:
        known = ", ".join(sorted(names)) or "none"
        raise ModelError(f"the engine has no LoRA module {name!r}; it has {known}", field="lora")


@dataclass(frozen=True, slots=True)
class _Adapter:
    """An adapter as it lies in a directory: its weights by the names of a network's layers, and what PEFT makes of it.

    It is one that PEFT saved, or one that Diffusers did.
    """

    file: Path
    weights: dict[str, torch.Tensor]
    settings: dict[str, Any]

    @classmethod
    def read(cls, directory: Path) -> _Adapter:
        """Raise ConfigError naming what is missing or is no plain LoRA."""
        file = directory / _DIFFUSERS_WEIGHTS
        if file.is_file() and not (directory / PEFT_CONFIG).is_file():
            weights, config = _read(file)
        else:
            config = peft_config(directory)
            file = directory / PEFT_WEIGHTS
            weights, _ = _read(file)
        for field, only in _ONLY.items():
            if config.get(field) not in (None, [], only):
                raise ConfigError(f"{config[field]!r} is not supported", file=str(file), field=field)
        ranks = {name.removesuffix(_DOWN): len(each) for name, each in weights.items() if name.endswith(_DOWN)}
        settings = {name: config[name] for name in _SETTINGS if config.get(name) is not None}
        if "r" not in settings:  # each layer's product is added as it is
            settings = {"r": 1, "rank_pattern": ranks, "alpha_pattern": ranks}
        return cls(file, weights, settings)

    @property
    def modules(self) -> list[str]:
        """The names of the layers to whose outputs it adds."""
        return [name.removesuffix(_DOWN) for name in self.weights if name.endswith(_DOWN)]

    def check(self, linear: Mapping[str, torch.nn.Linear]) -> None:
        """Raise ConfigError unless each weight is one of a pair for a linear layer of the network."""
        if not self.weights:
            raise ConfigError("the adapter has no weights", file=str(self.file))
        for name, weight in self.weights.items():
            module, suffix = name[: -len(_DOWN)], name[-len(_DOWN) :]
            layer, other = linear.get(module), {_DOWN: _UP, _UP: _DOWN}.get(suffix)
            if layer is None or other is None or module + other not in self.weights:
                raise ConfigError(f"the adapter is of another model: it has {name!r:.200}", file=str(self.file))
            rank = len(self.weights[module + _DOWN])
            due = [rank, layer.in_features] if suffix == _DOWN else [layer.out_features, rank]
            if list(weight.shape) != due:
                message = f"the adapter is of another model: {name!r:.200} is {list(weight.shape)}, and {due} is due"
                raise ConfigError(message, file=str(self.file))


def _read(file: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Return the weights by their layers' names, and the settings in the file's header, if it has some."""
    try:
        with safe_open(file, "pt") as opened:
            header = opened.metadata() or {}
            weights = {_plain(name): opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
        given = json.loads(header.get(_DIFFUSERS_CONFIG, "{}"))
        return weights, {_plain(name): value for name, value in given.items()}
    except (OSError, SafetensorError, ValueError, AttributeError) as error:
        raise ConfigError(f"cannot be read: {error}", file=str(file)) from error


def _plain(name: str) -> str:
    for prefix in _PREFIXES:
        name = name.removeprefix(prefix)
    return name
