"""omni_jobs.media: what is taken, how it is measured, what is refused and how."""

import io
import struct
import zlib
from typing import Any

import av
import numpy as np
import pytest
import soundfile
from PIL import Image

from omni_jobs.errors import InvalidRequest, RequestTooLarge
from omni_jobs.media.audio import decode_audio, probe_audio
from omni_jobs.media.image import decode_image, header_of_image, probe_image
from omni_jobs.media.media_limits import MediaLimits
from omni_jobs.media.video import decode_video, probe_video
from omni_jobs.settings import Settings
from tests.oracles import samples

LIMITS = MediaLimits.of(Settings())


# Audio


def wav_of(frames: np.ndarray[Any, Any], rate: int = 16_000) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, frames, rate, format="WAV", subtype="FLOAT")
    return file.getvalue()


@pytest.mark.parametrize(
    ("format", "subtype", "media_type"),
    [
        ("WAV", "PCM_16", "audio/wav"),
        ("WAV", "PCM_24", "audio/wav"),
        ("WAV", "FLOAT", "audio/wav"),
        ("WAVEX", "PCM_16", "audio/wav"),
        ("FLAC", None, "audio/flac"),
        ("MP3", None, "audio/mpeg"),
        ("OGG", "VORBIS", "audio/ogg"),
        ("OGG", "OPUS", "audio/ogg"),
    ],
)
def test_every_audio_format_becomes_16_khz_mono(format: str, subtype: str | None, media_type: str) -> None:
    data = samples.audio(0.5, rate=48_000, channels=2, format=format, subtype=subtype)
    info = probe_audio(data, LIMITS)
    assert (info.media_type, info.samples) == (media_type, 8000)
    decoded = decode_audio(data, 16_000, LIMITS)
    assert decoded.dtype == np.float32
    assert decoded.shape == (8000,)
    assert np.abs(decoded[1000:7000]).max() == pytest.approx(0.5, abs=0.02)
    assert np.array_equal(decoded, decode_audio(data, 16_000, LIMITS))


@pytest.mark.parametrize("rate", [8000, 11_025, 16_000, 22_050, 44_101, 48_000, 96_000, 192_000])
def test_the_length_after_resampling_is_the_ratio_rounded_up(rate: int) -> None:
    frames = 70_001
    assert len(decode_audio(wav_of(np.zeros(frames), rate), 16_000, LIMITS)) == -(-frames * 16_000 // rate)


def test_resampling_keeps_a_tone_and_drops_higher_frequencies() -> None:
    seconds = np.arange(48_000) / 48_000
    tones = 0.4 * np.sin(2 * np.pi * 1000 * seconds) + 0.4 * np.sin(2 * np.pi * 14_000 * seconds)
    spectrum = np.abs(np.fft.rfft(decode_audio(wav_of(tones, 48_000), 16_000, LIMITS))) / 8000
    assert spectrum[1000] == pytest.approx(0.4, abs=0.005)
    assert spectrum[1990:2011].max() < 0.001  # where 14 kHz would come out at 16 kHz


def test_channels_are_averaged() -> None:
    stereo = np.stack([np.full(3200, 0.5), np.full(3200, -0.25)], axis=1)
    assert np.allclose(decode_audio(wav_of(stereo), 16_000, LIMITS), 0.125)


@pytest.mark.parametrize("kept", [0.01, 0.3, 0.999])
@pytest.mark.parametrize("format", ["WAV", "FLAC"])
def test_a_cut_off_file_is_refused(format: str, kept: float) -> None:
    data = samples.audio(1.0, format=format)
    with pytest.raises(InvalidRequest, match=r"cut off|does not decode"):
        probe_audio(data[: int(len(data) * kept)], LIMITS)


def test_a_wav_written_to_a_pipe_is_taken() -> None:
    data = bytearray(samples.wav(0.5))
    struct.pack_into("<I", data, 4, 0xFFFFFFFF)
    struct.pack_into("<I", data, data.index(b"data") + 4, 0xFFFFFFFF)
    assert probe_audio(bytes(data), LIMITS).samples == 8000


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"", "not audio"),
        (b"hello, this is text", "not audio"),
        (samples.image(), "not audio"),
        (b"RIFF\x00\x00\x00\x00WAVE", "cut off"),
        (b"ID3" + bytes(500), "does not decode|no samples"),
        (samples.wav(0.05), "at least 0.1 s"),
        (wav_of(np.full(8000, np.nan)), "not numbers"),
        (wav_of(np.full(8000, np.inf)), "not numbers"),
        (wav_of(np.full(8000, 1e30)), "not numbers"),
        (wav_of(np.zeros((8000, 20))), "20 channels"),
        (samples.audio(0.5, rate=1000), "1000 Hz"),
    ],
)
def test_unusable_audio_is_refused(data: bytes, complaint: str) -> None:
    with pytest.raises(InvalidRequest, match=complaint):
        probe_audio(data, LIMITS)


@pytest.mark.parametrize("format", ["WAV", "FLAC", "MP3", "OGG"])
def test_audio_that_is_too_long_is_refused(format: str) -> None:
    with pytest.raises(RequestTooLarge, match="at most 1 s"):
        probe_audio(samples.audio(1.5, format=format), MediaLimits.of(Settings(max_audio_s=1.0)))


# Images


@pytest.mark.parametrize(
    ("format", "mode"),
    [("PNG", "RGB"), ("PNG", "RGBA"), ("PNG", "P"), ("PNG", "L"), ("PNG", "1"), ("JPEG", "RGB"), ("JPEG", "CMYK"),
     ("WEBP", "RGB"), ("GIF", "P")],
)  # fmt: skip
def test_every_image_format_becomes_rgb(format: str, mode: str) -> None:
    data = samples.image(64, 48, format=format, mode=mode)
    info = probe_image(data, LIMITS)
    assert (info.media_type, info.width, info.height) == (f"image/{format.lower()}", 64, 48)
    decoded = decode_image(data, LIMITS)
    assert (decoded.mode, decoded.size) == ("RGB", (64, 48))


def test_transparency_lies_on_white() -> None:
    file = io.BytesIO()
    Image.new("RGBA", (32, 32), (255, 0, 0, 0)).save(file, "PNG")
    assert decode_image(file.getvalue(), LIMITS).getpixel((5, 5)) == (255, 255, 255)


def test_sixteen_bits_are_scaled() -> None:
    file = io.BytesIO()
    Image.fromarray(np.full((32, 32), 0x8000, np.uint16)).save(file, "PNG")
    assert decode_image(file.getvalue(), LIMITS).getpixel((5, 5)) == (128, 128, 128)


def test_exif_turns_the_image_upright() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by 90 degrees
    data = samples.image(64, 48, format="JPEG", exif=exif)
    assert probe_image(data, LIMITS).width == 48
    assert decode_image(data, LIMITS).size == (48, 64)


def png_header(width: int, height: int) -> bytes:
    """The start of a PNG that claims a size and has no pixels."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunk = b"IHDR" + header
    start = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", len(header)) + chunk + struct.pack(">I", zlib.crc32(chunk))
    return start + struct.pack(">I", 1000) + b"IDAT"


@pytest.mark.parametrize(("width", "height"), [(1, 1), (8, 8), (27, 100), (1, 9000)])
def test_limits_of_models_are_not_those_of_pictures(width: int, height: int) -> None:
    info = probe_image(samples.image(width, height), LIMITS)
    assert (info.width, info.height) == decode_image(samples.image(width, height), LIMITS).size == (width, height)


@pytest.mark.parametrize(("width", "height"), [(6000, 6000), (20_000, 20_000), (0x7FFFFFFF, 0x7FFFFFFF)])
def test_a_huge_image_is_refused_by_its_header(width: int, height: int) -> None:
    for probe in (header_of_image, probe_image, decode_image):
        with pytest.raises(RequestTooLarge) as refused:
            probe(png_header(width, height), LIMITS)
        assert refused.value.message == (
            f"the image has {width}×{height} pixels; at most 32000000 are taken (max_image_pixels)"
        )


@pytest.mark.parametrize("format", ["PNG", "JPEG", "WEBP", "GIF"])
def test_a_cut_off_image_is_refused(format: str) -> None:
    data = samples.image(256, 256, format=format)
    with pytest.raises(InvalidRequest):
        probe_image(data[: len(data) // 2], LIMITS)


def test_other_image_formats_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="PNG, JPEG, WebP, GIF, AVIF, TIFF or BMP"):
        probe_image(samples.image(64, 64, format="ICO"), LIMITS)
    with pytest.raises(InvalidRequest, match="PNG, JPEG, WebP, GIF, AVIF, TIFF or BMP"):
        probe_image(b"<svg xmlns='http://www.w3.org/2000/svg'/>", LIMITS)


# Video


@pytest.mark.parametrize(
    ("codec", "format", "media_type"),
    [
        ("mpeg4", "mp4", "video/mp4"),
        ("libx264", "mp4", "video/mp4"),
        ("libx264", "mov", "video/mp4"),
        ("libvpx", "webm", "video/webm"),
        ("libvpx-vp9", "webm", "video/webm"),
        ("mpeg4", "matroska", "video/webm"),
        ("mpeg4", "avi", "video/x-msvideo"),
    ],
)
def test_every_video_format_gives_two_frames_a_second(codec: str, format: str, media_type: str) -> None:
    if codec not in av.codecs_available:
        pytest.skip(f"this FFmpeg does not encode {codec}")
    data = samples.video(30, fps=10, codec=codec, format=format)
    info = probe_video(data, LIMITS)
    assert (info.media_type, info.frames, info.width, info.height) == (media_type, 6, 64, 48)
    assert info.duration_s == pytest.approx(3.0, abs=0.01)
    frames, metadata = decode_video(data, LIMITS)
    assert (frames.dtype, frames.shape) == (np.uint8, (6, 48, 64, 3))
    assert metadata["frames_indices"] == [0, 5, 10, 15, 20, 25]
    assert metadata["total_num_frames"] == 30
    assert metadata["fps"] == pytest.approx(10, abs=0.1)
    greys = frames[:, 24, 32, 0].astype(int)
    assert np.abs(greys - np.array([0, 40, 80, 120, 160, 200])).max() <= 10


@pytest.mark.parametrize("fps", [5, 10, 24, 30])
@pytest.mark.parametrize("frames", [1, 2, 3, 4, 5, 7, 29, 61])
def test_transformers_picks_the_same_frames(frames: int, fps: int) -> None:
    processing = pytest.importorskip("transformers.models.qwen2_vl.video_processing_qwen2_vl")
    from transformers.video_utils import VideoMetadata

    _, metadata = decode_video(samples.video(frames, fps=fps), LIMITS)
    if frames == 1:
        assert metadata["frames_indices"] == [0, 0]  # Transformers divides by zero
        return
    video_processor = processing.Qwen2VLVideoProcessor()
    fields = {name: value for name, value in metadata.items() if name != "do_sample_frames"}
    expected = video_processor.sample_frames(VideoMetadata(**fields), fps=2.0)
    assert metadata["frames_indices"] == expected.tolist()


def test_frames_are_picked_by_time_not_by_number() -> None:
    """Ten frames in the first second, then one that stays for nine."""
    file = io.BytesIO()
    with av.open(file, "w", format="matroska") as container:
        stream = container.add_stream("mpeg4", rate=1000)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for number in range(12):
            frame = av.VideoFrame.from_ndarray(np.full((48, 64, 3), 20 * number, np.uint8), format="rgb24")
            frame.pts = number * 100 if number < 11 else 10_000
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    _, metadata = decode_video(file.getvalue(), LIMITS)
    assert metadata["frames_indices"][0] == 0
    assert metadata["frames_indices"][2:] == [10] * (len(metadata["frames_indices"]) - 2)


def test_large_frames_are_made_smaller_while_decoding() -> None:
    data = samples.video(4, width=1920, height=1080)
    info = probe_video(data, LIMITS)
    frames, _ = decode_video(data, LIMITS)
    assert (info.width, info.height) == (1008, 560)
    assert frames.shape == (4, 560, 1008, 3)


def test_a_turned_video_comes_out_upright() -> None:
    data = bytearray(samples.video(4, width=96, height=48))
    at = data.index(b"tkhd") + 4 + 40  # version 0: the matrix
    struct.pack_into(">9i", data, at, 0, 1 << 16, 0, -(1 << 16), 0, 0, 0, 0, 1 << 30)
    assert (probe_video(bytes(data), LIMITS).width, decode_video(bytes(data), LIMITS)[0].shape[1:3]) == (48, (96, 48))


def test_a_cut_off_video_is_refused() -> None:
    data = samples.video(30)
    started = samples.video(30, options={"movflags": "faststart"})
    for cut in (data[: len(data) // 2], data[:40], started[: len(started) // 2], started[:-50]):
        with pytest.raises(InvalidRequest, match=r"cut off|does not decode|no picture track"):
            probe_video(cut, LIMITS)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"#EXTM3U\n#EXTINF:1,\nfile:///etc/passwd\n",  # FFmpeg would open what a playlist names
        b"ffconcat version 1.0\nfile /etc/passwd\n",
        samples.wav(),
        samples.image(format="GIF"),
    ],
)
def test_only_known_containers_reach_ffmpeg(data: bytes) -> None:
    with pytest.raises(InvalidRequest, match="not a video"):
        probe_video(data, LIMITS)


def test_audio_in_a_video_container_is_no_video() -> None:
    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as container:
        stream = container.add_stream("aac", rate=16_000, layout="mono")
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), format="fltp", layout="mono")
        frame.sample_rate = 16_000
        container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    with pytest.raises(InvalidRequest, match="no picture track"):
        probe_video(file.getvalue(), LIMITS)


def test_limits_of_video() -> None:
    with pytest.raises(RequestTooLarge, match="at most 1 s"):
        probe_video(samples.video(30), MediaLimits.of(Settings(max_video_s=1.0)))
    with pytest.raises(RequestTooLarge, match="640×480"):
        probe_video(samples.video(4, width=640, height=480), MediaLimits.of(Settings(max_image_pixels=640 * 479)))
    assert probe_video(samples.video(4, width=64, height=16), LIMITS).height == 16
