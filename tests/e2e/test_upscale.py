"""Pictures with real weights: sharper and closer to the truth than by bicubic interpolation, whatever file they are."""

import base64
import io
import json
import struct
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image, ImageCms, ImageDraw

from omni_jobs.errors import InvalidInput, OmniJobsError
from tests import hostile
from tests.drawn_scenes import SCENES
from workers.offline import OmniLLM
from workers.offline.omni_llm import OmniOutput

FIELD = "requests.0.messages.0.content.0.image_url.url"


@pytest.fixture(scope="module")
def upscaler() -> Iterator[OmniLLM]:
    with OmniLLM("upscale") as llm:
        yield llm


def job(*pictures: bytes, **body: Any) -> dict[str, Any]:
    urls = [f"data:image/png;base64,{base64.b64encode(data).decode()}" for data in pictures]
    content = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    return {"messages": [{"role": "user", "content": content}], **body}


def file_of(picture: Image.Image, format: str = "PNG", **options: Any) -> bytes:
    file = io.BytesIO()
    picture.save(file, format, **options)
    return file.getvalue()


def enlarged(upscaler: OmniLLM, *requests: dict[str, Any]) -> list[Image.Image]:
    """Return the pictures that come back, in the order of the requests."""
    pictures = []
    for each in upscaler.generate(requests):
        assert isinstance(each, OmniOutput), each
        assert each.image is not None
        pictures.append(Image.open(io.BytesIO(each.image)))
        pictures[-1].load()
    return pictures


def psnr(picture: NDArray[Any], truth: NDArray[Any]) -> float:
    """Return the peak signal-to-noise ratio in decibels."""
    return float(10 * np.log10(255**2 / np.mean((picture.astype(float) - truth) ** 2)))


def slopes(picture: NDArray[Any]) -> NDArray[Any]:
    """Return how steep the brightness is at each pixel."""
    grey = np.asarray(Image.fromarray(picture).convert("L"), np.float64)
    down, right = np.gradient(grey)
    return np.hypot(down, right)


def sharpness(picture: NDArray[Any], truth: NDArray[Any]) -> float:
    """Return the energy of a picture's slopes as a part of the truth's: 1 is as sharp, less is blurred."""
    return float(np.mean(slopes(picture) ** 2) / np.mean(slopes(truth) ** 2))


def edge_error(picture: NDArray[Any], truth: NDArray[Any]) -> float:
    """Return how far a picture's slopes are from the truth's, so that false edges count as well as missing ones."""
    return float(np.sqrt(np.mean((slopes(picture) - slopes(truth)) ** 2)))


def test_ten_scenes_come_closer_to_the_truth_and_sharper_than_by_bicubic_interpolation(upscaler: OmniLLM) -> None:
    """Scenes of 256 pixels are made 64 by the mean of 4 x 4, and 256 again. The table is printed (pytest -s)."""
    truths = [np.asarray(scene()) for scene in SCENES]
    small = [Image.fromarray(truth).reduce(4) for truth in truths]
    assert {picture.size for picture in small} == {(64, 64)}
    bicubic = [np.asarray(picture.resize((256, 256), Image.Resampling.BICUBIC)) for picture in small]
    ours = [np.asarray(each) for each in enlarged(upscaler, *(job(file_of(picture)) for picture in small))]
    measures: dict[str, Callable[[NDArray[Any], NDArray[Any]], float]] = {
        "PSNR": psnr, "sharpness": sharpness, "edge error": edge_error
    }  # fmt: skip
    table = {
        name: np.array(
            [[measure(by, truth) for by in pair] for *pair, truth in zip(bicubic, ours, truths, strict=True)]
        )
        for name, measure in measures.items()
    }
    print("\nscene  " + "  ".join(f"{name:>10} bicubic, ours" for name in table))
    for number in range(len(SCENES)):
        print(f"{number:5}  " + "  ".join(f"{rows[number][0]:16.2f}{rows[number][1]:8.2f}" for rows in table.values()))
    print(" mean  " + "  ".join(f"{rows[:, 0].mean():16.2f}{rows[:, 1].mean():8.2f}" for rows in table.values()))
    gains = table["PSNR"][:, 1] - table["PSNR"][:, 0]
    assert (len(gains), int((gains > 0).sum())) == (10, 10)
    assert gains.mean() > 1.2  # measured 1.73 dB
    blur, sharp = table["sharpness"].T
    assert int((np.abs(1 - sharp) < np.abs(1 - blur)).sum()) == 10
    assert sharp.mean() > 2 * blur.mean()  # measured 0.59 of the truth's, and 0.24
    assert int((table["edge error"][:, 1] < table["edge error"][:, 0]).sum()) == 10


def test_formats_and_sizes_are_those_asked_for(upscaler: OmniLLM) -> None:
    picture = file_of(SCENES[0]().crop((0, 0, 70, 41)))
    formats = {None: "PNG", "png": "PNG", "jpeg": "JPEG", "webp": "WEBP"}
    requests = [job(picture, image={"format": name} if name else None) for name in formats]
    pictures = enlarged(upscaler, *requests)
    assert [each.format for each in pictures] == list(formats.values())
    assert {each.size for each in pictures} == {(280, 164)}
    lossless = np.asarray(pictures[0], np.int16)
    for each in pictures[2:]:
        assert np.abs(np.asarray(each.convert("RGB")) - lossless).mean() < 4


def test_a_picture_tells_its_seed_and_nothing_of_its_job(upscaler: OmniLLM) -> None:
    picture = file_of(SCENES[0]().crop((0, 0, 40, 40)))
    png, again, webp = enlarged(
        upscaler, job(picture, seed=7), job(picture, seed=8), job(picture, seed=7, image={"format": "webp"})
    )
    first, second = png.text, again.text  # type: ignore[attr-defined]
    assert (first["Software"], first["seed"], second["seed"]) == ("omni-jobs", "7", "8")
    assert {*first, *second} == {"Software", "seed"}
    comment = json.loads(webp.getexif().get_ifd(0x8769)[0x9286][8:])
    assert comment == {"seed": "7"}


def test_a_picture_is_the_same_alone_and_in_company(upscaler: OmniLLM) -> None:
    requests = [job(file_of(scene().reduce(5))) for scene in SCENES[:4]]
    together = enlarged(upscaler, *requests)
    for request, each in zip(requests, together, strict=True):
        (alone,) = enlarged(upscaler, request)
        assert np.array_equal(np.asarray(alone), np.asarray(each))


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def deep(channels: int) -> bytes:
    """Return a PNG of 16 bits a channel, a ramp from black to white: 48 x 32 pixels."""
    row = b"\0" + b"".join(struct.pack(">H", 65_535 * x // 47) * channels for x in range(48))
    header = struct.pack(">IIBBBBB", 48, 32, 16, {1: 0, 3: 2}[channels], 0, 0, 0)
    parts = [chunk(b"IHDR", header), chunk(b"IDAT", zlib.compress(row * 32)), chunk(b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def animated(format: str) -> bytes:
    """Return a file whose first frame is red and whose second is blue."""
    frames = [Image.new("RGB", (40, 30), colour) for colour in ("red", "blue")]
    return file_of(frames[0], format, save_all=True, append_images=frames[1:], duration=100)


def plain(mode: str, format: str, colour: object, **options: Any) -> bytes:
    return file_of(Image.new(mode, (40, 30), colour), format, **options)  # type: ignore[arg-type]


SRGB = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
TURNED = Image.Exif()
TURNED[0x0112] = 6  # turned by a quarter

# A file, and the size and the colour of the middle that come back.
UNUSUAL: dict[str, tuple[bytes, tuple[int, int], tuple[int, int, int]]] = {
    "animated GIF": (animated("GIF"), (160, 120), (254, 0, 0)),
    "animated PNG": (animated("PNG"), (160, 120), (255, 0, 0)),
    "animated WebP": (animated("WEBP"), (160, 120), (255, 0, 0)),
    "16-bit grey": (deep(1), (192, 128), (128, 128, 128)),
    "16-bit RGB": (deep(3), (192, 128), (128, 128, 128)),
    "CMYK": (plain("CMYK", "JPEG", (0, 255, 255, 0)), (160, 120), (254, 0, 0)),
    "one bit": (plain("1", "PNG", 1), (160, 120), (255, 255, 255)),
    "palette": (file_of(Image.new("RGB", (40, 30), "red").quantize(2)), (160, 120), (255, 0, 0)),
    "grey with transparency": (plain("LA", "PNG", (0, 255)), (160, 120), (0, 0, 0)),
    "a profile": (plain("RGB", "PNG", "red", icc_profile=SRGB), (160, 120), (255, 0, 0)),
    "a broken profile": (plain("RGB", "PNG", "red", icc_profile=SRGB[:50] + b"\xff" * 99), (160, 120), (255, 0, 0)),
    "a profile that is none": (plain("RGB", "JPEG", "red", icc_profile=b"no profile"), (160, 120), (254, 0, 0)),
    "turned": (plain("RGB", "JPEG", "red", exif=TURNED), (120, 160), (254, 0, 0)),
    "an icon": (file_of(Image.new("RGB", (8, 8), "red")), (32, 32), (255, 0, 0)),
    "a strip": (file_of(Image.new("RGB", (28 * 201, 28), "red")), (28 * 804, 112), (255, 0, 0)),
}


@pytest.mark.parametrize("name", UNUSUAL)
def test_an_unusual_file_gives_a_picture(upscaler: OmniLLM, name: str) -> None:
    data, size, colour = UNUSUAL[name]
    (picture,) = enlarged(upscaler, job(data))
    assert (picture.mode, picture.size) == ("RGB", size)
    found = np.asarray(picture.getpixel((size[0] // 2, size[1] // 2)))
    assert np.abs(found - colour).max() <= 8, found


def test_transparency_is_enlarged_with_the_picture(upscaler: OmniLLM) -> None:
    disc = Image.new("RGBA", (48, 32))  # hidden pixels are black
    ImageDraw.Draw(disc).ellipse((8, 4, 39, 27), (250, 60, 40, 255))
    disc.putpixel((24, 16), (250, 60, 40, 128))
    files = [file_of(disc), file_of(disc, "WEBP", lossless=True, exact=True), file_of(disc, "GIF")]
    png, webp, gif = enlarged(upscaler, *(job(file) for file in files))
    for picture in (png, webp, gif):
        assert (picture.mode, picture.size) == ("RGBA", (192, 128))
        assert [picture.getpixel(at)[3] for at in ((2, 2), (48, 64))] == [0, 255]
    pixels = np.asarray(png, np.int16)
    shows = pixels[..., 3] > 0
    assert np.abs(pixels[shows][:, :3] - (250, 60, 40)).max() <= 12, "the hidden black comes into the edge"
    assert 100 < pixels[66, 98, 3] < 200
    jpeg, as_webp = enlarged(upscaler, *(job(files[0], image={"format": each}) for each in ("jpeg", "webp")))
    assert (jpeg.mode, as_webp.mode) == ("RGB", "RGBA")
    assert min(jpeg.getpixel((2, 2))) >= 250


SMALL = file_of(SCENES[0]().reduce(8))
BAD_JOBS: dict[str, tuple[Callable[[], dict[str, Any]], str, str]] = {
    "a huge one": (lambda: job(file_of(Image.new("1", (20_000, 20_000)))), "max_image_pixels", FIELD),
    "too large a one": (lambda: job(file_of(Image.new("L", (2049, 2048)))), "at most 4194304 are enlarged", FIELD),
    "too wide a WebP": (
        lambda: job(file_of(Image.new("L", (4096, 64))), image={"format": "webp"}),
        "sides have at most 16383",
        FIELD,
    ),
    "cut": (lambda: job(SMALL[:200]), "does not decode", FIELD),
    "no picture file": (lambda: job(b"%PDF-1.7"), "AVIF, TIFF or BMP", FIELD),
    "a bomb": (lambda: job(hostile.jpeg_scan_bomb()), "scans", FIELD),
    "text alone": (
        lambda: {"messages": [{"role": "user", "content": "a lighthouse"}]},
        "no picture",
        "requests.0.messages",
    ),
    "two": (lambda: job(SMALL, SMALL), "one picture", FIELD.replace("content.0", "content.1")),
    "another output": (lambda: job(SMALL, modalities=["text"]), "does not make", "requests.0.modalities.0"),
    "another format": (lambda: job(SMALL, image={"format": "tiff"}), "png, jpeg, webp", "requests.0.image.format"),
    "an unknown network": (
        lambda: job(SMALL, stages={"enlarge": {"network": "../x"}}),
        "realesrgan-x4plus",
        "requests.0.stages.enlarge.network",
    ),
    "a network that is not listed": (
        lambda: job(SMALL, stages={"enlarge": {"network": "realesrgan-x4plus-anime"}}),
        "lists no network",
        "requests.0.stages.enlarge.network",
    ),
    "a mask": (lambda: job(SMALL, stages={"enlarge": {"mask": ""}}), "unknown key", "requests.0.stages.enlarge.mask"),
    "a wrong type": (
        lambda: job(SMALL, stages={"enlarge": {"faithful": "yes"}}),
        "must be true or false",
        "requests.0.stages.enlarge.faithful",
    ),
}


@pytest.mark.parametrize("name", BAD_JOBS)
def test_a_bad_job_is_refused_and_the_next_one_is_done(upscaler: OmniLLM, name: str) -> None:
    request, message, field = BAD_JOBS[name]
    with pytest.raises(OmniJobsError, match=message) as caught:
        upscaler.generate([request()])
    assert isinstance(caught.value, InvalidInput)
    assert 400 <= caught.value.http_status < 500
    assert caught.value.field == field
    (picture,) = enlarged(upscaler, job(SMALL))
    assert picture.size == (128, 128)


def test_photographs_have_a_network_of_their_own(upscaler: OmniLLM) -> None:
    truth = SCENES[0]()
    small = job(file_of(truth.reduce(4)))
    chosen = small | {"stages": {"enlarge": {"network": "realesrgan-x4plus"}}}
    first, second = (np.asarray(each) for each in enlarged(upscaler, small, chosen))
    assert psnr(second, np.asarray(truth)) > psnr(first, np.asarray(truth))
