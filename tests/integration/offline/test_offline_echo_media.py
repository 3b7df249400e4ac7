"""The pipeline ``echo_media`` makes real files of what it is asked, and hears and sees what it is given."""

import hashlib
import io
from collections.abc import Iterator, Mapping
from typing import Any

import av
import numpy as np
import pytest
import soundfile
from PIL import Image

from omni_jobs.errors import InvalidRequest
from omni_jobs.pipelines.outputs import AUDIO, IMAGE, VIDEO
from tests.oracles import samples
from workers.offline import OmniLLM, OmniOutput

STAGES = {"audio": "sound", "image": "picture", "video": "video"}
BARS = np.array([[191 * int(bit) for bit in f"{bar:03b}"] for bar in (7, 6, 3, 2, 5, 4, 1, 0)])


@pytest.fixture(scope="module")
def llm() -> Iterator[OmniLLM]:
    with OmniLLM("echo_media") as started:
        yield started


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def made(llm: OmniLLM, *parts: dict[str, Any], modalities: list[str], **fields: Any) -> OmniOutput:
    message = {"role": "user", "content": list(parts)}
    [output] = llm.generate([{"messages": [message], "modalities": modalities, "seed": 7, **fields}])
    assert isinstance(output, OmniOutput), output
    return output


def file(output: OmniOutput) -> bytes:
    [artifact] = output.artifacts.values()
    return bytes(artifact.data)


@pytest.mark.parametrize("format", [each.name for each in AUDIO.formats])
def test_a_text_is_spoken_in_each_format_and_heard_again(llm: OmniLLM, format: str) -> None:
    """32 characters are 1.6 s; a lossy coder may add a frame, and the voice nova is 880 Hz."""
    audio = {"voice": "nova", "format": format}
    data = file(made(llm, text("x" * 32), modalities=["audio"], audio=audio))
    if format == "pcm":
        samples_ = np.frombuffer(data, "<i2")
        assert len(samples_) == 1.6 * 24_000
        buffer = io.BytesIO()
        soundfile.write(buffer, samples_, 24_000, format="WAV")
        data = buffer.getvalue()
    output = made(llm, samples.audio_part(data), modalities=["text"])
    assert "880 Hz for 1." in (output.text or "")
    [transcript] = output.result["transcripts"]["answer"]
    assert transcript["duration_s"] == pytest.approx(1.6, abs=0.1)


def test_the_voices_differ(llm: OmniLLM) -> None:
    voices = llm.pipeline.voices
    sounds = {file(made(llm, text("hi"), modalities=["audio"], audio={"voice": voice})) for voice in voices}
    assert len(sounds) == len(voices) == 4


def test_several_sounds_are_heard_one_by_one(llm: OmniLLM) -> None:
    parts = [samples.audio_part(samples.wav(1.0)), samples.audio_part(samples.wav(2.0))]
    output = made(llm, text("What is it?"), *parts, modalities=["text"], stages={"answer": {"subtitles": ["srt"]}})
    assert output.text == "What is it?\n440 Hz for 1.00 s\n440 Hz for 2.00 s"
    assert file(output).decode() == (
        "1\n00:00:00,000 --> 00:00:01,000\n440 Hz for 1.00 s\n\n2\n00:00:01,000 --> 00:00:03,000\n440 Hz for 2.00 s\n\n"
    )


def test_a_chats_parameters_are_taken(llm: OmniLLM) -> None:
    sampling = {"temperature": 1.0, "top_p": 0.9, "presence_penalty": 0.5, "frequency_penalty": -0.5}
    output = made(llm, text("one two three four"), modalities=["text"], max_tokens=3, stop="three", **sampling)
    assert (output.text, output.result["finish_reason"]) == ("one two ", "stop")
    output = made(llm, text("one two three four"), modalities=["text"], max_tokens=1)
    assert (output.text, output.result["finish_reason"]) == ("one", "length")
    [warning] = output.warnings
    assert warning.message == "the answer stopped at its max_tokens of 1: the text is probably cut"


def test_pictures_and_videos_are_told_by_size_and_colour(llm: OmniLLM) -> None:
    parts = [samples.image_part(samples.image()), samples.video_part(samples.video())]
    output = made(llm, *parts, modalities=["text"])
    picture, video = (output.text or "").split("\n")
    assert picture == "a picture of 64 x 48 pixels, #7f7f7f"
    assert video.startswith("a video of 1.00 s, 64 x 48 pixels, #")


@pytest.mark.parametrize("format", [each.name for each in IMAGE.formats])
def test_a_picture_has_the_size_that_is_asked_for(llm: OmniLLM, format: str) -> None:
    stages = {"picture": {"width": 320, "height": 192, "steps": 1}}
    output = made(llm, text("a boat"), modalities=["image"], image={"format": format}, stages=stages)
    picture = Image.open(io.BytesIO(file(output)))
    assert (picture.format, picture.size) == (format.upper(), (320, 192))
    pixels = np.asarray(picture.convert("RGB")).astype(int)
    assert np.abs(pixels[80, 20::40] - BARS).max() < 12
    squares = pixels[160:][np.arange(2, 32, 4)][:, np.arange(5, 320, 10), 0] > 127
    assert np.packbits(squares).tobytes() == hashlib.sha256(b"7\na boat").digest()


def test_a_picture_is_edited_at_its_own_size(llm: OmniLLM) -> None:
    given = samples.image(160, 90)
    output = made(llm, text("invert"), samples.image_part(given), modalities=["image"])
    picture = np.asarray(Image.open(io.BytesIO(file(output))))
    source = np.asarray(Image.open(io.BytesIO(given)).convert("RGB"))
    assert picture.shape == source.shape
    assert (picture[:75] == 255 - source[:75]).all()


@pytest.mark.parametrize(("size", "fitted"), [((16, 8), (64, 64)), ((4096, 1024), (2048, 512))])
def test_a_source_beyond_the_sides_is_scaled(llm: OmniLLM, size: tuple[int, int], fitted: tuple[int, int]) -> None:
    output = made(llm, samples.image_part(samples.image(*size)), modalities=["image"])
    assert Image.open(io.BytesIO(file(output))).size == fitted


@pytest.mark.parametrize("format", [each.name for each in VIDEO.formats])
def test_a_video_starts_from_its_picture_and_moves(llm: OmniLLM, format: str) -> None:
    source = Image.new("RGB", (160, 96), "red")
    source.paste("blue", (80, 0, 160, 96))
    given = io.BytesIO()
    source.save(given, "PNG")
    stages = {"video": {"width": 160, "height": 96, "seconds": 2, "fps": 5, "steps": 1}}
    parts = [text("a boat"), samples.image_part(given.getvalue())]
    output = made(llm, *parts, modalities=["video"], video={"format": format}, stages=stages)
    with av.open(io.BytesIO(file(output))) as container:
        [stream] = container.streams
        assert isinstance(stream, av.VideoStream)
        assert (stream.average_rate, stream.width, stream.height) == (5, 160, 96)
        frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(stream)]
    assert len(frames) == 10
    assert [reddish(frames[0], x) for x in (40, 120)] == [True, False]
    assert [reddish(frames[5], x) for x in (20, 60, 100, 140)] == [False, True, True, False]  # a quarter to the right


def reddish(frame: np.ndarray, column: int) -> bool:
    red, _, blue = frame[40, column].astype(int)
    return bool(red > blue)


@pytest.mark.parametrize(
    ("modality", "stages", "is_drawn"),
    [
        ("audio", {}, False),
        ("image", {"picture": {"width": 64, "height": 64}}, True),
        ("video", {"video": {"width": 64, "height": 64, "seconds": 0.5}}, True),
    ],
)
def test_the_same_seed_gives_the_same_bytes(
    llm: OmniLLM, modality: str, stages: dict[str, Any], is_drawn: bool
) -> None:
    one, again, other = (
        file(made(llm, text("hi"), modalities=[modality], stages=stages, seed=seed)) for seed in (7, 7, 8)
    )
    assert one == again
    assert (one != other) == is_drawn


@pytest.mark.parametrize(
    ("modality", "parts", "parameters", "field", "message"),
    [
        ("audio", [text("x" * 12_001)], {}, "messages", "12001 characters would sound for 600 s"),
        ("audio", [text("hi")], {"seconds": 601}, "stages.sound.seconds", "less than or equal to 600"),
        ("image", [text("hi")], {"width": 32}, "stages.picture.width", "greater than or equal to 64"),
        ("image", [text("hi")], {"fps": 8}, "stages.picture.fps", "unknown"),
        ("video", [text("hi")], {"seconds": 0}, "stages.video.seconds", "greater than or equal to 0.1"),
        (
            "video",
            [text("hi")],
            {"width": 2048, "height": 2048, "seconds": 5},
            "stages.video.width",
            "width x height x seconds x fps are 167772160 video_pixels",
        ),
        (
            "video",
            [samples.image_part(samples.image())] * 2,
            {},
            "messages.0.content.1",
            "a video starts from one picture",
        ),
        ("text", [text("hi")], {"subtitles": ["srt", "srt"]}, "stages.answer.subtitles", "twice"),
    ],
)
def test_what_cannot_be_made_is_refused_by_name(
    llm: OmniLLM, modality: str, parts: list[Any], parameters: Mapping[str, Any], field: str, message: str
) -> None:
    request = {
        "messages": [{"role": "user", "content": parts}],
        "modalities": [modality],
        "stages": {STAGES.get(modality, "answer"): parameters},
    }
    with pytest.raises(InvalidRequest, match=message) as caught:
        llm.generate([request])
    assert (caught.value.field or "").removeprefix("requests.0.") == field
