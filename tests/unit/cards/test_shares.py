"""The shares of the shipped stage configs against docs/operations/gpus.md, and the words for one that is too small."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from omni_jobs.cards import CardNeed, CardPlace, divided, need_of
from omni_jobs.cli import app
from omni_jobs.pipelines.loader import load_pipeline
from omni_jobs.pipelines.stage_config import StageConfig
from tests.docs.pages import page
from tests.packaging.checkpoint_sizes import CHECKPOINTS
from tests.unit.cards.test_need import CONFIGS, TALKER, TEXT, omni, with_engine, write_hole

__all__ = ["omni"]

OF_7B = {"chat": {"llm": 14.0}, "voice": {"think": 14.0}}  # the weights of pipelines that take any language model


def rows() -> dict[str, list[str]]:
    """The cells of the table of all pipelines, by the pipeline's name."""
    section = page("operations/gpus.md").partition("## The other pipelines")[2]
    lines = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| `")]
    return {re.findall(r"`(\w+)`", cells[0])[0]: cells for cells in lines}


def with_shares() -> Iterator[str]:
    for file in sorted(CONFIGS.glob("*.yaml")):
        if "gpu_memory_utilization" in file.read_text():
            yield file.stem


def weights(name: str) -> dict[str, float]:
    """Stage → gigabytes of its weights, as the table has them."""
    found = {stage: float(size) for stage, size in re.findall(r"`(\w+)` ([\d.]+)", rows()[name][1])}
    return found or OF_7B[name]


def least_card(name: str) -> float:
    """Gigabytes of the card that is enough by the table, also for the largest pictures."""
    cell = rows()[name][-1]
    if sum_ := re.fullmatch(r"\(weights \+ ([\d.]+)\) / ([\d.]+)", cell):
        return (sum(weights(name).values()) + float(sum_[1])) / float(sum_[2])
    return max(float(size) for size in re.findall(r"\d+", cell) if float(size) < 1000)  # others are of pictures


def needs(name: str, directory: Path) -> list[CardNeed]:
    """What its stages take, with weights of the table's size that are holes."""
    pipeline = load_pipeline(CONFIGS / f"{name}.yaml")
    found = []
    for stage, gigabytes in weights(name).items():
        config = pipeline.stage(stage)
        assert config.component_declaration is not None
        memory = config.component_declaration.memory
        assert memory is not None
        dtype = str(getattr(config.engine_settings.on("cuda"), "dtype", None))
        width = {"float32": 4, "bfloat16": 2}.get(dtype, memory.auto_bytes)
        folder, _, prefix = memory.weights[0].rpartition("/")
        own = directory / stage
        write_hole(own / folder / "model.safetensors", {f"{prefix}w": ("BF16", int(gigabytes * 10**9) // width)})
        if memory.context:
            file, *keys = memory.context
            content: dict[str, object] = dict(TALKER if stage == "talker" else TEXT)
            for key in reversed(keys):
                content = {key: content}
            (own / file).parent.mkdir(parents=True, exist_ok=True)
            (own / file).write_text(json.dumps(content))
        need = need_of(pipeline, config, own)
        assert need is not None
        found.append(need)
    return found


def test_every_stage_config_with_a_share_has_its_row() -> None:
    assert set(with_shares()) <= set(rows())


@pytest.mark.parametrize("name", sorted(rows()))
def test_the_shares_of_a_stage_config_are_enough_on_the_card_that_the_docs_name(name: str, tmp_path: Path) -> None:
    found = needs(name, tmp_path)
    places = divided(found, [round(least_card(name) * 10**9)])
    assert [place.need.stage for place in places if not place.cards] == [], "no room"
    too_small = {place.need.stage: (place.need.share, place.needed) for place in places if place.is_given_too_little}
    assert too_small == {}
    told = [float(share) for share in re.findall(r"0\.\d+", rows()[name][3])]
    assert told == [place.need.share for place in places if place.need.share is not None], "the table's shares"


def compact_rows() -> list[list[str]]:
    """The cells of the table of what takes less of a card."""
    section = page("operations/gpus.md").partition("## Less of a card")[2].partition("\n## ")[0]
    return [re.sub("`", "", line).strip("| ").split(" | ") for line in section.splitlines() if " of " in line[:14]]


@pytest.mark.parametrize("row", compact_rows(), ids=lambda row: f"{row[0]} {row[1]}")
def test_the_settings_that_the_docs_name_give_a_pipeline_room(row: list[str], tmp_path: Path) -> None:
    """Without them it has none, and with them each card is as full as the table says, and keeps a twentieth free."""
    cards, name, setting, told = row
    number, size = cards.split(" of ")
    room = [int(size) * 10**9] * {"one": 1, "two": 2, "three": 3}[number]
    CHECKPOINTS[name][0].write(tmp_path)
    pipeline = load_pipeline(CONFIGS / f"{name}.yaml")
    key, value = setting.split(": ")
    engine = {"cuda": {key: {"true": True}.get(value, value)}}

    def places(denoise: StageConfig) -> list[CardPlace]:
        stages = {**pipeline.stages, "denoise": denoise}.values()
        found = [need_of(pipeline, stage, tmp_path) for stage in stages]
        return divided([need for need in found if need is not None], room)

    assert not all(place.cards for place in places(pipeline.stages["denoise"]))
    found = places(with_engine(pipeline.stages["denoise"], engine))
    taken = [sum(place.need.bytes for place in found if card in place.cards) for card in range(len(room))]
    assert all(place.cards for place in found)
    assert max(taken) <= 0.95 * room[0]
    assert {int(each) for each in re.findall(r"\d+", told)} <= {round(each / 10**9) for each in taken}


def test_a_share_that_is_too_small_is_marked(omni: Path) -> None:
    def shown(gpu: str) -> str:
        arguments = ["pipelines", "fit", "qwen2_5_omni", "--gpu", gpu, "--model", str(omni)]
        return CliRunner().invoke(app, arguments, env={"COLUMNS": "200"}).stdout

    small = {line.split()[0]: "too small" in line for line in shown("44").splitlines() if line.startswith("qwen2_5")}
    assert small == {"qwen2_5_omni.thinker": True, "qwen2_5_omni.talker": True, "qwen2_5_omni.code2wav": False}
    assert "0.55, too small" in shown("44")
    assert "too small" not in shown("48")


def test_without_a_pipeline_those_that_are_served_are_fitted(omni: Path) -> None:
    def fit(**settings: str) -> tuple[int, str, str]:
        done = CliRunner().invoke(app, ["pipelines", "fit", "--gpu", "80", "--json"], env=settings)
        return done.exit_code, done.stdout, done.stderr

    models = json.dumps({"qwen2_5_omni": str(omni)})
    for settings in ({}, {"OMNI_JOBS_PIPELINES": "qwen2_5_omni,echo"}):
        code, shown, _ = fit(OMNI_JOBS_MODELS=models, **settings)
        assert (code, [each["stage"] for each in json.loads(shown)]) == (0, ["thinker", "talker", "code2wav"])
    code, _, said = fit(OMNI_JOBS_PIPELINES="qwen2_5_omni")
    assert (code, "name its checkpoint: --model qwen2_5_omni=DIRECTORY" in said) == (1, True)
    code, _, said = fit()
    assert (code, "name the pipelines that share the cards, or their checkpoints" in said) == (2, True)
