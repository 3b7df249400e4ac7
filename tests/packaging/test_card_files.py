"""deploy/cards: each file is what the command reckons, and Compose makes of it shares that fit and are enough."""

import json
import re
import subprocess
from collections import Counter
from pathlib import Path

import pytest
from typer.testing import CliRunner

from omni_jobs.cards import CardNeed
from omni_jobs.cli import app
from omni_jobs.settings import read_settings
from tests.docs.pages import page
from tests.packaging.card_files import ALL, FOLDER, MOST, PIPELINES, ROOT, Cards, fitting, made, needs
from tests.packaging.checkpoint_sizes import CHECKPOINTS
from tests.packaging.compose_file import COMPOSE, EXAMPLE, example, workers
from tests.packaging.interpolation import variables_of
from tests.packaging.test_compose_variables import read
from tests.unit.cards.test_shares import rows, weights

GB = 10**9


def names() -> set[str]:
    """The variables of docker-compose.yml that a file may set."""
    return {each.name for each in variables_of(COMPOSE.read_text()) if re.search(r"_GPU(_MEMORY)?$", each.name)}


def blocks_of(cards: Cards) -> dict[str, tuple[str, dict[str, str]]]:
    """Pipeline → checkpoint and variables, of a file."""
    text = (FOLDER / cards.name).read_text(encoding="utf-8")
    found = re.findall(r"(?m)^# (\w+), with ([\w.-]+).*\n((?:\w+=.*\n)+)", text)
    parts = {name: (checkpoint, dict(example(lines))) for name, checkpoint, lines in found}
    assert [pair for _, own in parts.values() for pair in own.items()] == example(text), "a line of no pipeline"
    return parts


def needs_of(pipeline: str, checkpoint: str) -> dict[str, CardNeed]:
    position = [each.name for each in CHECKPOINTS[pipeline]].index(checkpoint)
    return {need.stage: need for need in needs(pipeline, position)}


def test_they_are_what_the_command_reckons_now() -> None:
    there = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.iterdir()}
    assert there == made(), "run scripts/card-files"
    checked = subprocess.run([ROOT / "scripts" / "card-files", "--check"], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr


@pytest.mark.parametrize("cards", ALL, ids=lambda cards: cards.name)
def test_compose_makes_of_it_what_fits_the_cards_and_is_enough(cards: Cards, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the second of two files of variables, whose values stand over those of the first."""
    for pipeline, (checkpoint, own) in blocks_of(cards).items():
        first = {name: value for name, value in example(EXAMPLE.read_text()) if value} | dict.fromkeys(names(), "7")
        services = workers(read({**first, "COMPOSE_PROFILES": pipeline, **own})["services"])
        wanted = needs_of(pipeline, checkpoint)
        used: Counter[str] = Counter()
        for service in services.values():
            if service["profiles"] != [pipeline] or "runtime" not in service:
                continue
            need = wanted.pop(service["command"][5])
            environment = service["environment"]
            on = environment["NVIDIA_VISIBLE_DEVICES"].split(",")
            assert len(on) == need.cards
            assert all(0 <= int(card) < cards.number for card in on)
            takes = need.bytes / cards.bytes
            if need.takes_share:
                monkeypatch.setenv("OMNI_JOBS_GPU_MEMORY_UTILIZATION", environment["OMNI_JOBS_GPU_MEMORY_UTILIZATION"])
                share = read_settings().gpu_memory_utilization
                assert share is not None
                assert share >= takes, f"{pipeline}.{need.stage}"
                takes = share
            else:
                assert "OMNI_JOBS_GPU_MEMORY_UTILIZATION" not in environment
            used.update(dict.fromkeys(on, takes))  # type: ignore[arg-type]
        assert wanted == {}, "stages without a worker"
        assert max(used.values()) <= MOST + 1e-9, f"{pipeline}: {used}"


@pytest.mark.parametrize("cards", ALL, ids=lambda cards: cards.name)
def test_it_names_what_has_room_and_what_has_none(cards: Cards) -> None:
    text = (FOLDER / cards.name).read_text(encoding="utf-8")
    found = blocks_of(cards)
    assert set(dict(example(text))) <= names()
    without = re.findall(r"(?m)^# No room for: (.*)$", text)
    assert [*found, *(name for line in without for name in line.split(", "))] == sorted(
        CHECKPOINTS, key=lambda name: (name not in found, list(CHECKPOINTS).index(name))
    )
    for pipeline in CHECKPOINTS:
        fits = fitting(pipeline, cards)
        assert (None if fits is None else fits[0]) == (found[pipeline][0] if pipeline in found else None)
    assert f"docker compose --env-file .env --env-file deploy/cards/{cards.name} up" in text


def test_every_pipeline_on_cards_has_its_variables_in_some_file() -> None:
    on_cards = {
        name
        for name, pipeline in PIPELINES.items()
        if any(stage.runner.torch and stage.model is not None for stage in pipeline.stages.values())
    }
    assert set(CHECKPOINTS) == on_cards
    assert {name for cards in ALL for name, _ in example((FOLDER / cards.name).read_text())} == names()


def test_the_page_has_a_row_for_each_file() -> None:
    lines = re.findall(r"(?m)^\| `([\w-]+\.env)` \| (.*) \|$", page("operations/gpus.md"))
    said = {name: dict(re.findall(r"`(\w+)` \(([\w.-]+)\)", cell)) for name, cell in lines}
    assert said == {
        cards.name: {pipeline: checkpoint for pipeline, (checkpoint, _) in blocks_of(cards).items()} for cards in ALL
    }


# The sizes of the checkpoints are those of docs/operations/gpus.md.


@pytest.mark.parametrize("pipeline", [name for name in CHECKPOINTS if re.search(r"`\w+` \d", rows()[name][1])])
def test_the_weights_are_those_of_the_page(pipeline: str) -> None:
    found = {need.stage: round(need.weights_bytes / GB, 1) for need in needs(pipeline, 0)}
    assert found == weights(pipeline)


def test_the_table_of_qwen2_5_omni_is_what_its_stages_take() -> None:
    row = re.compile(r"(?m)^\| `(\w+)` \| .* \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|$")
    told = {stage: tuple(map(float, sizes)) for stage, *sizes in row.findall(page("operations/gpus.md"))}
    large, small = (needs("qwen2_5_omni", position) for position in range(2))
    assert told == {
        one.stage: tuple(round(size / GB, 1) for size in (one.work_bytes, one.bytes, two.bytes))
        for one, two in zip(large, small, strict=True)
    }


# The command that makes such a file for other cards.


def fit(directory: Path, *words: str) -> tuple[int, str, str]:
    CHECKPOINTS["qwen2_5_omni"][0].write(directory)
    model = ["--model", f"qwen2_5_omni={directory}"]
    done = CliRunner().invoke(app, ["pipelines", "fit", "qwen2_5_omni", *model, *words], env={"COLUMNS": "200"})
    return done.exit_code, done.stdout, done.stderr


@pytest.mark.parametrize("cards", [each for each in ALL if each.size_gb == 48], ids=lambda cards: cards.name)
def test_the_command_prints_the_lines_of_a_file(cards: Cards, tmp_path: Path) -> None:
    code, shown, _ = fit(tmp_path, *["--gpu", str(cards.size_gb)] * cards.number, "--env")
    assert code == 0
    assert shown == "".join(f"{name}={value}\n" for name, value in blocks_of(cards)["qwen2_5_omni"][1].items())


def test_the_command_prints_no_half_of_a_file(tmp_path: Path) -> None:
    code, shown, said = fit(tmp_path, "--gpu", "24", "--env")
    assert (code, shown) == (1, "")
    assert "no card has room for qwen2_5_omni.thinker" in said
    code, shown, said = fit(tmp_path, "--gpu", "48", "--env", "--json")
    assert (code, shown) == (2, "")
    assert "either --env or --json" in said


def test_an_engine_on_several_cards_gets_them_all_by_one_variable(tmp_path: Path) -> None:
    configs = tmp_path / "configs"
    configs.mkdir()
    text = (ROOT / "stage_configs" / "chat.yaml").read_text().replace("dtype: auto", "tensor_parallel_size: 2")
    (configs / "chat.yaml").write_text(text)
    CHECKPOINTS["chat"][0].write(tmp_path / "chat")
    environment = {
        "OMNI_JOBS_STAGE_CONFIGS": str(configs),
        "OMNI_JOBS_PIPELINES": "chat",
        "OMNI_JOBS_MODELS": json.dumps({"chat": str(tmp_path / "chat")}),
    }
    done = CliRunner().invoke(app, ["pipelines", "fit", "--gpu", "48", "--gpu", "48", "--env"], env=environment)
    assert done.stdout == "CHAT_LLM_GPU=0,1\nCHAT_LLM_GPU_MEMORY=0.95\n"
