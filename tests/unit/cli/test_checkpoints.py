"""What ``omni-jobs up`` serves: which pipeline a checkpoint is for, and tiny ones that it builds."""

import importlib
import json
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from omni_jobs.cli import Exit, app
from omni_jobs.cli.checkpoints import build_tiny, chosen_pipelines
from omni_jobs.errors import ConfigError
from omni_jobs.settings import Settings
from omni_jobs.stack.tiny_checkpoint import source_digest, tiny_checkpoint

PAINTERS = """
from omni_jobs.pipelines.declarations import ComponentDeclaration, Family, ProcessorDeclaration

def painter(*classes):
    return Family(
        {None: ComponentDeclaration("diffusion", produces=frozenset({"pixels"}))},
        processors={"paint": ProcessorDeclaration("json:JSONDecoder", "diffusion")},
        checkpoint_files=("model_index.json",),
        diffusers_classes=frozenset(classes),
    )

OILS, INKS = painter("OilsPipeline", "OilsEditPipeline"), painter("InksPipeline")
"""
CONFIG = """\
name: {name}
version: "1"
model: {{family: {name}}}
stages:
  paint: {{kind: diffusion, processor: paint, produces: pixels}}
outputs:
  image: {{stage: paint}}
"""


@pytest.fixture
def painters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Two families of another package, each with a stage config, beside a package that cannot be loaded."""
    site = tmp_path / "site"
    about = site / "painters-1.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: painters\nVersion: 1\n", encoding="utf-8")
    entries = "[omni_jobs.families]\noils = painters:OILS\ninks = painters:INKS\nbroken = nowhere.at_all:BROKEN\n"
    (about / "entry_points.txt").write_text(entries, encoding="utf-8")
    (site / "painters.py").write_text(PAINTERS, encoding="utf-8")
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.delitem(sys.modules, "painters", raising=False)
    importlib.invalidate_caches()
    configs = tmp_path / "configs"
    configs.mkdir()
    for name in ("oils", "inks"):
        (configs / f"{name}.yaml").write_text(CONFIG.format(name=name), encoding="utf-8")
    return Settings(stage_configs=configs, data_dir=tmp_path / "data")


def diffusers(directory: Path, index: object) -> str:
    directory.mkdir()
    (directory / "model_index.json").write_text(json.dumps(index), encoding="utf-8")
    return str(directory)


def test_model_index_json_decides_which_pipeline_takes_a_checkpoint(painters: Settings, tmp_path: Path) -> None:
    edit = diffusers(tmp_path / "edit", {"_class_name": "OilsEditPipeline", "vae": ["diffusers", "AutoencoderKL"]})
    inks = diffusers(tmp_path / "inks", {"_class_name": "InksPipeline"})
    assert chosen_pipelines(painters, [], [edit]) == (["oils"], {"oils": Path(edit)})
    assert chosen_pipelines(painters, [], [inks, edit]) == (["inks", "oils"], {"inks": Path(inks), "oils": Path(edit)})
    assert chosen_pipelines(painters, [], [f"inks={edit}"]) == (["inks"], {"inks": Path(edit)})


@pytest.mark.parametrize(
    ("index", "about"),
    [
        ({"_class_name": "WaterPipeline"}, "model_index.json says 'WaterPipeline', which no pipeline here takes"),
        ({"_class_name": ["diffusers", "OilsPipeline"]}, "model_index.json says ['diffusers', 'OilsPipeline']"),
        ({"_class_name": None, "architectures": ["OilsPipeline"]}, "model_index.json says None"),
    ],
)
def test_a_checkpoint_of_an_unknown_class_is_refused(
    painters: Settings, tmp_path: Path, index: object, about: str
) -> None:
    with pytest.raises(typer.BadParameter) as caught:
        chosen_pipelines(painters, [], [diffusers(tmp_path / "other", index)])
    assert about in caught.value.message
    assert "name its pipeline: PIPELINE=" in caught.value.message


@pytest.mark.parametrize(("text", "about"), [("{", "cannot be read"), ("[]", "not a JSON object")])
def test_a_wrong_model_index_json_is_named(painters: Settings, tmp_path: Path, text: str, about: str) -> None:
    directory = Path(diffusers(tmp_path / "wrong", {}))
    (directory / "model_index.json").write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=about) as caught:
        chosen_pipelines(painters, [], [str(directory)])
    assert caught.value.file == str(directory / "model_index.json")


# Tiny ones.


def test_a_tiny_checkpoint_is_built_once_in_the_data_directory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = Settings(data_dir=tmp_path / "data")
    outdated = tmp_path / "data" / "tiny" / "upscale-000000000000"
    outdated.mkdir(parents=True)
    (tmp_path / "data" / "stack.lock").touch()
    assert chosen_pipelines(settings, [], [], ["upscale"]) == (["upscale"], {})
    built = build_tiny(settings, ["upscale"])
    directory = tmp_path / "data" / "tiny" / f"upscale-{source_digest('workers.models.upscale.tiny_checkpoint')}"
    assert built == {"upscale": directory}
    assert (directory / "realesr-animevideov3-x4.param").is_file()
    assert not outdated.exists()
    said = capsys.readouterr().out
    assert "upscale: a tiny checkpoint with random weights" in said
    assert "What it makes is noise" in said
    before = directory.stat()
    assert build_tiny(settings, ["upscale"]) == built
    assert directory.stat() == before
    assert build_tiny(settings, []) == {}


def test_a_tiny_pipeline_is_served_beside_others() -> None:
    settings = Settings()
    assert chosen_pipelines(settings, ["echo"], [], ["upscale", "echo"])[0] == ["echo", "upscale"]
    assert chosen_pipelines(settings.model_copy(update={"pipelines": ("echo",)}), [], [], ["upscale"])[0] == [
        "echo", "upscale",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "about", "code"),
    [
        ("echo", "echo needs no checkpoint: leave --tiny out", Exit.FAILED),
        ("speech", "family hibari has no tiny checkpoint; these have: ", Exit.FAILED),
        ("nope", "unknown pipeline 'nope'", Exit.NOT_FOUND),
    ],
)
def test_up_refuses_a_tiny_checkpoint_that_there_is_not(tmp_path: Path, name: str, about: str, code: int) -> None:
    done = CliRunner().invoke(app, ["up", "--tiny", name, "--data-dir", str(tmp_path / "data")])
    assert done.exit_code == code
    assert about in done.output


def test_a_builder_that_fails_or_is_not_there_is_named(
    painters: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = Path(sys.path[0])
    text = (site / "painters.py").read_text(encoding="utf-8")
    (site / "painters.py").write_text(
        text.replace("checkpoint_files", 'tiny_checkpoint="no_such_builder",\n        checkpoint_files'),
        encoding="utf-8",
    )
    with pytest.raises(ConfigError, match="the module no_such_builder is not installed"):
        tiny_checkpoint("oils", tmp_path / "tiny")
    (site / "no_such_builder.py").write_text("raise SystemExit('out of paint')\n", encoding="utf-8")
    importlib.invalidate_caches()
    monkeypatch.setenv("PYTHONPATH", str(site))
    with pytest.raises(ConfigError, match="no_such_builder could not make the checkpoint:\nout of paint"):
        tiny_checkpoint("oils", tmp_path / "tiny")
    assert not list((tmp_path / "tiny").glob("oils-*"))
