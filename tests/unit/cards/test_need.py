"""What stages take of a card, from checkpoints of true size that are holes, and from the tiny ones of each family."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from typer.testing import CliRunner

from omni_jobs.cards import CardNeed, need_of, shortage
from omni_jobs.cards.need import _tensors
from omni_jobs.cli import app
from omni_jobs.errors import ConfigError
from omni_jobs.pipelines.loader import load_pipeline
from omni_jobs.pipelines.stage_config import StageConfig
from omni_jobs.settings import Settings
from tests.services.checkpoint import TinyCheckpoints

CONFIGS = Path(__file__).parents[3] / "stage_configs"
TEXT = {
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "hidden_size": 3584,
    "max_position_embeddings": 32768,
}
TALKER = {**TEXT, "num_hidden_layers": 24, "num_attention_heads": 12, "head_dim": 128, "hidden_size": 896}


def write_hole(file: Path, tensors: Mapping[str, tuple[str, int]]) -> None:
    """Write a safetensors file whose tensors, each of a dtype and so many values, are a hole."""
    file.parent.mkdir(parents=True, exist_ok=True)
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, (dtype, values) in tensors.items():
        start, end = end, end + values * {"F32": 4, "BF16": 2, "I32": 4, "F8_E4M3": 1}[dtype]
        header[name] = {"dtype": dtype, "shape": [values], "data_offsets": [start, end]}
    encoded = json.dumps(header).encode()
    with file.open("wb") as opened:
        opened.write(len(encoded).to_bytes(8, "little") + encoded)
        opened.truncate(8 + len(encoded) + end)


def needs(name: str, directory: Path) -> dict[str, CardNeed | None]:
    pipeline = load_pipeline(CONFIGS / f"{name}.yaml")
    return {stage.name: need_of(pipeline, stage, directory) for stage in pipeline.stages.values()}


def with_engine(stage: StageConfig, engine: Mapping[str, object]) -> StageConfig:
    return StageConfig.model_validate({**stage.model_dump(), "engine": engine})


@pytest.fixture
def omni(tmp_path: Path) -> Path:
    """Qwen2.5-Omni 7B, by its numbers of weights."""
    million = 10**6
    write_hole(tmp_path / "model-1.safetensors", {"thinker.model.w": ("BF16", 8_930 * million)})
    write_hole(
        tmp_path / "model-2.safetensors",
        {"talker.w": ("BF16", 1_350 * million), "token2wav.w": ("F32", 450 * million)},
    )
    config = {
        "architectures": ["Qwen2_5OmniForConditionalGeneration"],
        "model_type": "qwen2_5_omni",
        "thinker_config": {"text_config": TEXT},
        "talker_config": TALKER,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    return tmp_path


def test_a_checkpoint_of_true_size(omni: Path) -> None:
    found = needs("qwen2_5_omni", omni)
    thinker, talker, code2wav = found["thinker"], found["talker"], found["code2wav"]
    assert thinker is not None
    assert talker is not None
    assert code2wav is not None
    assert (thinker.weights_bytes, talker.weights_bytes) == (17_860_000_000, 2_700_000_000)
    assert code2wav.weights_bytes == 1_800_000_000
    assert thinker.context_bytes == 32768 * 2 * 28 * 4 * 128 * 2
    assert talker.context_bytes == 32768 * 2 * 24 * 4 * 128 * 2
    assert (code2wav.context_bytes, code2wav.takes_share) == (0, False)
    assert (thinker.share, talker.share, code2wav.share) == (0.55, 0.15, None)
    assert thinker.bytes < 0.55 * 48 * 10**9, "the stage config's share is for a card of 48 GB"


def test_the_command_divides_the_cards(omni: Path) -> None:
    def fit(*gpus: str) -> tuple[int, list[dict[str, object]]]:
        given = [word for gpu in gpus for word in ("--gpu", gpu)]
        done = CliRunner().invoke(app, ["pipelines", "fit", "qwen2_5_omni", *given, "--model", str(omni), "--json"])
        return done.exit_code, json.loads(done.stdout)

    code, [thinker, talker, code2wav] = fit("48")
    assert code == 0
    assert [each["on"] for each in (thinker, talker, code2wav)] == [[0]] * 3
    assert (thinker["share_needed"], thinker["share_to_give"]) == (0.55, 0.64)
    code, [thinker, talker, code2wav] = fit("32", "24")
    assert (code, thinker["on"], talker["on"], code2wav["on"]) == (0, [0], [1], [1])
    code, [thinker, talker, code2wav] = fit("24")
    assert (code, thinker["on"], talker["on"]) == (1, [], [0])
    shown = CliRunner().invoke(app, ["pipelines", "fit", "qwen2_5_omni", "--gpu", "80", "--model", str(omni)])
    assert "qwen2_5_omni.thinker  NVIDIA_VISIBLE_DEVICES=0 OMNI_JOBS_GPU_MEMORY_UTILIZATION=0.68" in shown.stdout
    assert "39.6 of 80.0 GB" in shown.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["qwen2_5_omni", "--gpu", "80"], "name its checkpoint: --model qwen2_5_omni=DIRECTORY"),
        (["no_such"], "no_such"),
        (["qwen2_5_omni", "--model", "qwen2_5_omni=/none"], "no such checkpoint directory"),
        (["qwen2_5_omni", "--gpu", "0"], "--gpu"),
    ],
)
def test_what_is_wrong_is_named(arguments: list[str], said: str) -> None:
    done = CliRunner().invoke(app, ["pipelines", "fit", *arguments], env={"COLUMNS": "200"})
    assert done.exit_code != 0
    assert said in done.stderr


def test_pipelines_that_take_no_card() -> None:
    done = CliRunner().invoke(app, ["pipelines", "fit", "echo", "--gpu", "80"])
    assert (done.exit_code, done.stdout.strip()) == (0, "None of their stages runs on a card.")


def test_each_of_two_devices_of_a_diffusion_stage_has_all_weights(tmp_path: Path) -> None:
    write_hole(tmp_path / "transformer" / "model.safetensors", {"transformer_blocks.0.w": ("BF16", 20_430 * 10**6)})
    pipeline = load_pipeline(CONFIGS / "qwen_image.yaml")
    given = pipeline.stages["denoise"]
    one, two = (need_of(pipeline, with_engine(given, {"cuda": {"devices": devices}}), tmp_path) for devices in (1, 2))
    assert one is not None
    assert two is not None
    assert (one.cards, two.cards) == (1, 2)
    assert one.weights_bytes == two.weights_bytes == 40_860 * 10**6


def test_a_stage_that_lacks_a_second_card_says_how_many_it_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for each in ("text_encoder", "transformer", "transformer_2", "vae"):
        write_hole(tmp_path / each / "model.safetensors", {"blocks.0.w": ("BF16", 1000)})
    given = (CONFIGS / "wan.yaml").read_text()
    (tmp_path / "wan.yaml").write_text(given.replace("snapshot_every_s: 60", "devices: 2"))
    monkeypatch.setenv("OMNI_JOBS_STAGE_CONFIGS", str(tmp_path))
    arguments = ["pipelines", "fit", "wan", "--gpu", "24", "--model", f"wan={tmp_path}"]
    done = CliRunner().invoke(app, arguments, env={"COLUMNS": "200"})
    assert done.exit_code == 1
    assert "no room on 2 cards of one size" in done.stdout
    assert CliRunner().invoke(app, [*arguments, "--gpu", "24"]).exit_code == 0


@pytest.mark.parametrize(
    ("engine", "millions"),
    [
        ({}, 40_960),
        ({"weights": "float8"}, 20_480),
        ({"offload_blocks": True}, 1_520),
        ({"weights": "float8", "offload_blocks": True}, 760),
        ({"offload_blocks": False, "cuda": {"offload_blocks": True}}, 1_520),
    ],
)
def test_a_compact_transformer_takes_less(tmp_path: Path, engine: dict[str, object], millions: int) -> None:
    blocks = {f"transformer_blocks.{n}.w": ("BF16", 340 * 10**6) for n in range(60)}
    write_hole(tmp_path / "transformer" / "model.safetensors", {**blocks, "img_in.weight": ("BF16", 80 * 10**6)})
    write_hole(tmp_path / "vae" / "model.safetensors", {"w": ("BF16", 10**6)})
    pipeline = load_pipeline(CONFIGS / "qwen_image.yaml")
    stage = with_engine(pipeline.stages["denoise"], engine)
    need = need_of(pipeline, stage, tmp_path)
    assert need is not None
    # Blocks but for two are in host memory; what is no block stays on the card.
    assert need.weights_bytes == millions * 10**6


@pytest.mark.parametrize(
    ("engine", "millions"),
    [
        ({}, 2 * (28_000 + 460)),
        ({"weights": "float8"}, 2 * (14_000 + 460)),
        ({"offload_blocks": True}, 2 * (700 + 460)),
        ({"weights": "float8", "offload_blocks": True}, 2 * (350 + 460)),
    ],
)
def test_of_two_compact_transformers_the_blocks_of_one_are_on_the_card(
    tmp_path: Path, engine: dict[str, object], millions: int
) -> None:
    """What is no block stays as it is, and is reckoned for both."""
    blocks = {f"blocks.{n}.attn1.to_q.weight": ("BF16", 350 * 10**6) for n in range(40)}
    for folder in ("transformer", "transformer_2"):
        rest = {"condition_embedder.time_proj.weight": ("BF16", 230 * 10**6)}
        write_hole(tmp_path / folder / "model.safetensors", {**blocks, **rest})
    pipeline = load_pipeline(CONFIGS / "wan.yaml")
    need = need_of(pipeline, with_engine(pipeline.stages["denoise"], engine), tmp_path)
    assert need is not None
    assert need.weights_bytes == millions * 10**6


@pytest.mark.parametrize(("name", "values"), [("qwen_image", 45), ("wan", 47)])
def test_adapters_are_loaded_beside_the_weights(tmp_path: Path, name: str, values: int) -> None:
    """What lies deeper is not loaded, such as what a training has left after some steps."""
    for folder in ("transformer", "transformer_2"):
        write_hole(tmp_path / folder / "model.safetensors", {"transformer_blocks.0.w": ("BF16", 500)})
    write_hole(tmp_path / "ink" / "adapter_model.safetensors", {"a": ("F32", 30), "b": ("F32", 10)})
    write_hole(tmp_path / "ink" / "checkpoint-500" / "pytorch_lora_weights.safetensors", {"a": ("F32", 30)})
    write_hole(tmp_path / "film" / "transformer" / "adapter_model.safetensors", {"a": ("F32", 5)})
    write_hole(tmp_path / "film" / "transformer_2" / "adapter_model.safetensors", {"a": ("F32", 2)})
    adapters = {each: str(tmp_path / each) for each in ("ink", "film", "elsewhere")}
    pipeline = load_pipeline(CONFIGS / f"{name}.yaml")
    need = need_of(pipeline, with_engine(pipeline.stages["denoise"], {"lora_modules": adapters}), tmp_path)
    assert need is not None
    assert need.weights_bytes == 1000 * (2 if name == "wan" else 1) + 2 * values


def test_a_broken_adapter_is_named_with_its_file(tmp_path: Path) -> None:
    write_hole(tmp_path / "transformer" / "model.safetensors", {"transformer_blocks.0.w": ("BF16", 1000)})
    (tmp_path / "ink").mkdir()
    (tmp_path / "ink" / "adapter_model.safetensors").write_bytes(b"hello")
    pipeline = load_pipeline(CONFIGS / "qwen_image.yaml")
    stage = with_engine(pipeline.stages["denoise"], {"lora_modules": {"ink": str(tmp_path / "ink")}})
    with pytest.raises(ConfigError, match=r"ink/adapter_model\.safetensors: the header") as caught:
        need_of(pipeline, stage, tmp_path)
    assert caught.value.field == "engine.lora_modules.ink"


def test_quantized_weights_stay_as_they_are(tmp_path: Path) -> None:
    write_hole(tmp_path / "model.safetensors", {"q": ("I32", 1000), "s": ("F32", 1000), "e": ("F8_E4M3", 1000)})
    write_hole(tmp_path / "consolidated.safetensors", {"q": ("I32", 1000)})
    (tmp_path / "config.json").write_text(json.dumps({"text_config": TEXT}))
    llm = needs("chat", tmp_path)["llm"]
    assert llm is not None
    assert llm.weights_bytes == 4000 + 2000 + 1000


@pytest.mark.parametrize("content", [b"", b"\x01", b"\xff" * 16, b"\x02" + bytes(7) + b"[]"])
def test_a_broken_file_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model.safetensors").write_bytes(content)
    (tmp_path / "config.json").write_text(json.dumps(TEXT))
    with pytest.raises(ConfigError) as caught:
        needs("chat", tmp_path)
    assert caught.value.file == str(tmp_path / "model.safetensors")


@pytest.mark.parametrize(
    ("config", "field"), [({}, "max_position_embeddings"), ({**TEXT, "num_hidden_layers": "x"}, "num_hidden_layers")]
)
def test_a_config_without_numbers_is_named(tmp_path: Path, config: dict[str, object], field: str) -> None:
    write_hole(tmp_path / "model.safetensors", {"w": ("BF16", 10)})
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError) as caught:
        needs("chat", tmp_path)
    assert (caught.value.file, caught.value.field) == (str(tmp_path / "config.json"), field)


# The families' declarations against their checkpoints: each weight is some stage's.


@pytest.mark.parametrize(
    ("name", "fixture", "not_loaded"),
    [
        ("qwen2_5_omni", "tiny_checkpoints", ()),
        ("qwen2_5_vl", "tiny_qwen_vls", ()),
        ("qwen3_omni", "tiny_qwen3_omnis", ()),
        (
            "qwen_image",
            "tiny_qwen_images",
            ("text_encoder/lm_head.", "text_encoder/visual.", "text_encoder/model.visual."),
        ),
        ("qwen_image_edit", "tiny_qwen_image_edits", ("text_encoder/lm_head.",)),
        ("glm_image", "tiny_glm_images", ()),
        ("wan", "tiny_wans", ()),
        ("wan_i2v", "tiny_wan_i2vs", ()),
    ],
)
def test_every_weight_of_a_checkpoint_is_a_stages(
    name: str, fixture: str, not_loaded: tuple[str, ...], request: pytest.FixtureRequest
) -> None:
    build: TinyCheckpoints = request.getfixturevalue(fixture)
    directory = build(0)
    pipeline = load_pipeline(CONFIGS / f"{name}.yaml")
    assert all(need is not None and need.weights_bytes > 0 for need in needs(name, directory).values())
    memories = [
        stage.component_declaration.memory
        for stage in pipeline.stages.values()
        if stage.component_declaration is not None and stage.component_declaration.memory is not None
    ]
    assert len(memories) == len(pipeline.stages)
    left = []
    for file in directory.rglob("*.safetensors"):
        folder = file.parent.relative_to(directory).as_posix()
        for weight in _tensors(file):
            whole = weight if folder == "." else f"{folder}/{weight}"
            loaded = any(
                whole.startswith(each.weights) and not whole.startswith(each.without or ("\0",)) for each in memories
            )
            if not loaded and not whole.startswith(not_loaded or ("\0",)):
                left.append(whole)
    assert left == []


SMI = """#!/bin/sh
echo "0, NVIDIA Test, 580.65.06, {total}, {free}"
"""


@pytest.mark.parametrize(
    ("total_gb", "free_gb", "share", "said"),
    [
        (80, 80, 0.2, "a share of 0.33 of card 0 would do, and it has 0.2 (OMNI_JOBS_GPU_MEMORY_UTILIZATION"),
        (24, 24, 0.9, "takes about 26.1 GB of a card, and card 0 has 24.0"),
        (80, 20, 0.9, "20.0 GB of card 0 are free: other processes have the rest"),
        (80, 80, 0.9, None),
    ],
)
def test_a_worker_is_told_what_it_lacks(
    omni: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    total_gb: int,
    free_gb: int,
    share: float,
    said: str | None,
) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    smi = programs / "nvidia-smi"
    smi.write_text(SMI.format(total=total_gb * 10**9 >> 20, free=free_gb * 10**9 >> 20))
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", str(programs), prepend=":")
    pipeline = load_pipeline(CONFIGS / "qwen2_5_omni.yaml")
    settings = Settings(models={"qwen2_5_omni": omni}, gpu_memory_utilization=share)
    found = shortage(pipeline, pipeline.stage("thinker"), settings, 0)
    assert (found is None) if said is None else (found is not None and said in found)
    assert shortage(pipeline, pipeline.stage("thinker"), settings, 1) is None
