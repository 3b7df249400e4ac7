"""The table of outputs is made of entry points, ours like another package's, and a broken one is named."""

import dataclasses
import inspect
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import numpy as np
import pytest

from omni_jobs.errors import ConfigError
from omni_jobs.pipelines.outputs import AUDIO, IMAGE, OUTPUTS, TEXT, VIDEO, Output, OutputFormat, output
from omni_jobs.pipelines.plugins import names

OURS = "".join(f"{name} = omni_jobs.pipelines.outputs:{name.upper()}\n" for name in ("audio", "image", "text", "video"))

Install = Callable[[str, str], Path]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Return what leaves a package's entry points, as installing it would, and gives its directory."""

    def installed(package: str, entries: str) -> Path:
        site = tmp_path / package
        metadata = site / f"{package.replace('-', '_')}-0.1.dist-info"
        metadata.mkdir(parents=True)
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 0.1\n", encoding="utf-8")
        (metadata / "entry_points.txt").write_text(f"[{OUTPUTS}]\n{entries}", encoding="utf-8")
        monkeypatch.syspath_prepend(str(site))
        return site

    # The first package of a name is the one that counts, so this one stands for whatever omni-jobs is installed.
    installed("omni-jobs", OURS)
    return installed


def test_ours_are_found(install: Install) -> None:
    assert names(OUTPUTS) == ("audio", "image", "text", "video")
    assert [output(name) for name in names(OUTPUTS)] == [AUDIO, IMAGE, TEXT, VIDEO]


@pytest.mark.parametrize(
    ("declared", "tensors", "values"),
    [
        (AUDIO, {"waveform": np.linspace(-1, 1, 9_000, dtype=np.float32)}, {"sampling_rate": 24_000}),
        (IMAGE, {"pixels": np.arange(7 * 9 * 3, dtype=np.uint8).reshape(7, 9, 3)}, {}),
        (VIDEO, {"pixels": np.arange(2 * 8 * 8 * 3).astype(np.uint8).reshape(2, 8, 8, 3)}, {"frame_rate": 24}),
    ],
    ids=["audio", "image", "video"],
)
def test_every_format_has_an_encoder_that_makes_such_files(
    declared: Output, tensors: dict[str, Any], values: dict[str, Any]
) -> None:
    assert declared.encoder is not None
    encode = resolve_name(declared.encoder)
    takes = ["tensors", "values", "format", *(["metadata"] if declared.metadata else [])]
    assert list(inspect.signature(encode).parameters) == takes
    magic = {
        "wav": b"RIFF", "flac": b"fLaC", "mp3": b"ID3", "opus": b"OggS", "aac": b"\xff\xf1", "pcm": b"\x01\x80",
        "png": b"\x89PNG", "jpeg": b"\xff\xd8\xff", "webp": b"RIFF",
        "mp4": b"\0\0\0\x20ftyp", "webm": b"\x1a\x45\xdf\xa3",
    }  # fmt: skip
    for format in declared.formats:
        assert encode(tensors, values, format.name).startswith(magic[format.name]), format.name
    with pytest.raises(ConfigError, match="known: " + ", ".join(sorted(format.name for format in declared.formats))):
        encode(tensors, values, "nothing")


def test_the_defaults_are_wav_png_and_mp4_and_text_has_no_artifact() -> None:
    assert [one.formats[0].name for one in (AUDIO, IMAGE, VIDEO)] == ["wav", "png", "mp4"]
    assert (TEXT.formats, TEXT.encoder, TEXT.artifact) == ((), None, None)


def test_the_table_is_light() -> None:
    code = (
        "import sys, omni_jobs.pipelines.outputs as outputs; outputs.AUDIO, outputs.TEXT; "
        'print(*sorted({"torch", "workers", "numpy", "av", "soundfile", "PIL"} & set(sys.modules)))'
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


# Another package's.


def test_a_package_adds_an_output(install: Install) -> None:
    site = install("smells", "smell = smells_declared:SMELL\n")
    (site / "smells_declared.py").write_text(
        "from omni_jobs.pipelines.outputs import Output, OutputFormat\n"
        "SMELL = Output('smell', 'vapour', (OutputFormat('nose', '.nose', 'smell/nose'),), 'smells:encode', 'smell')\n",
        encoding="utf-8",
    )
    assert output("smell").formats == (OutputFormat("nose", ".nose", "smell/nose"),)
    assert names(OUTPUTS) == ("audio", "image", "smell", "text", "video")


def test_an_output_that_nobody_declares_is_refused(install: Install) -> None:
    message = f"no such plug-in 'smell' of {OUTPUTS} is installed; known: audio, image, text, video"
    with pytest.raises(ConfigError, match=message):
        output("smell")


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("odd = json:dumps", f"the entry point 'odd' of {OUTPUTS} is no Output"),
        ("odd = omni_jobs.pipelines.outputs:Output", "'odd' of omni_jobs.outputs is no Output"),
        ("odd = omni_jobs.pipelines.outputs:AUDIO", "'odd' of omni_jobs.outputs is the output 'audio'"),
        ("odd = json:nothing", "'odd' of omni_jobs.outputs cannot be loaded: AttributeError: module 'json' has no"),
        ("odd = nowhere.at_all:X", "'odd' of omni_jobs.outputs cannot be loaded: ModuleNotFoundError: No module"),
        ("odd = odd_declared:X", "'odd' of omni_jobs.outputs cannot be loaded: NameError: name 'red' is not defined"),
    ],
)
def test_a_broken_declaration_is_named_and_the_others_are_found(install: Install, entry: str, message: str) -> None:
    (install("half", entry + "\n") / "odd_declared.py").write_text("X = red\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=message):
        output("odd")
    assert output("audio") is AUDIO


def test_two_of_one_name_are_refused_even_if_one_is_ours(install: Install) -> None:
    install("louder", "audio = louder:AUDIO\n")
    with pytest.raises(ConfigError, match=r"omni_jobs\.outputs stands in several packages: louder:AUDIO and"):
        output("audio")
    assert output("text") is TEXT


# Declarations that cannot be right.


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"modality": "Audio"}, "modality"),
        ({"modality": "../audio"}, "modality"),
        ({"flow": ""}, "flow"),
        ({"artifact": "a/b"}, "artifact"),
        ({"artifact": None}, "formats"),
        ({"encoder": None}, "formats"),
        ({"formats": ()}, "formats"),
        ({"encoder": "workers.encoders.audio"}, "encoder"),
        ({"formats": AUDIO.formats[:1] * 2}, "formats"),
        ({"formats": (AUDIO.formats[0], dataclasses.replace(AUDIO.formats[1], suffix=".wav"))}, "formats"),
    ],
)
def test_an_output_that_contradicts_itself_is_refused(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        dataclasses.replace(AUDIO, **changes)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("name", "suffix", "media_type", "field"),
    [
        ("", ".wav", "audio/wav", "name"),
        ("w av", ".wav", "audio/wav", "name"),
        ("wav", "wav", "audio/wav", "suffix"),
        ("wav", "./wav", "audio/wav", "suffix"),
        ("wav", ".wav", "audio", "media_type"),
        ("wav", ".wav", "audio/wav\r\nX: y", "media_type"),
    ],
)
def test_a_format_that_cannot_be_served_is_refused(name: str, suffix: str, media_type: str, field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        OutputFormat(name, suffix, media_type)
    assert caught.value.field == field


def test_they_are_installed() -> None:
    assert set(names(OUTPUTS)) >= {"audio", "image", "text", "video"}
