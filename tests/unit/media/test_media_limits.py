"""omni_jobs.media: limits by what a header says, before any memory is taken, and by what comes out."""

import io
import struct
from itertools import product
from typing import Any

import numpy as np
import pytest
from PIL import Image

from omni_jobs.errors import InvalidRequest, RequestTooLarge
from omni_jobs.media.audio import decode_audio, header_of_audio, probe_audio
from omni_jobs.media.image import decode_image, header_of_image, probe_image
from omni_jobs.media.media_limits import MediaLimits
from omni_jobs.media.mp4_index import check_index
from omni_jobs.media.video import decode_video, header_of_video, probe_video
from omni_jobs.settings import Settings
from tests import hostile
from tests.oracles import samples

LIMITS = MediaLimits.of(Settings())


# MP4


@pytest.mark.parametrize("options", [{}, {"movflags": "faststart"}, {"movflags": "frag_keyframe+empty_moov"}])
@pytest.mark.parametrize("format", ["mp4", "mov"])
def test_an_honest_index_is_taken(format: str, options: dict[str, str]) -> None:
    check_index(samples.video(30, format=format, options=options), 30)
    with pytest.raises(RequestTooLarge, match="30 frames"):
        check_index(samples.video(30, format=format), 29)


@pytest.mark.parametrize("probe", [header_of_video, probe_video, lambda data, limits: decode_video(data, limits)])
def test_an_index_that_claims_too_much_never_reaches_ffmpeg(probe: Any) -> None:
    with pytest.raises(InvalidRequest, match="claims 85000000 frames"):
        probe(hostile.mp4_index_bomb(), LIMITS)
    with pytest.raises(RequestTooLarge, match="80000000 frames"):
        probe(hostile.mp4_fragment_bomb(), LIMITS)


HIDDEN = {
    "free": (hostile.mp4_free_bomb, "claims 30000000 frames"),
    "meta": (hostile.mp4_meta_bomb, "claims 30000000 frames"),
    "stsd": (hostile.mp4_description_bomb, "has stsz in stsd"),
    "sound": (hostile.mov_sound_bomb, f"{64 << 21} frames"),
    "edits": (hostile.mp4_edits_bomb, "3000 edits of 5000 frames"),
}


@pytest.mark.parametrize("name", HIDDEN)
def test_an_index_that_only_ffmpeg_finds_never_reaches_it(name: str) -> None:
    bomb, why = HIDDEN[name]
    with pytest.raises((InvalidRequest, RequestTooLarge), match=why):
        header_of_video(bomb(), LIMITS)


FLAGS = [
    "",
    "faststart",
    "frag_keyframe+empty_moov",
    "frag_keyframe",
    "dash",
    "cmaf",
    "use_metadata_tags",
    "hybrid_fragmented+frag_keyframe",
]
METADATA = {"title": "hello", "artist": "me", "comment": "stsz trun moov hdlr", "location": "+48.1-011.5/"}


SOUNDS = ["aac", "alac", "pcm_s16le", "pcm_f32le"]


@pytest.mark.parametrize("flags", FLAGS)
@pytest.mark.parametrize(  # MP4 has no A-law
    ("format", "sound"), [*product(["mp4", "mov"], SOUNDS), ("mov", "pcm_alaw")]
)
def test_files_of_ffmpeg_are_accepted(format: str, sound: str, flags: str) -> None:
    """With names of boxes in ``udta`` and ``meta``, and descriptions that hold boxes of their own."""
    options = {"movflags": flags} if flags else {}
    data = samples.video_with_sound(
        12, 60, sound=sound, codec="libx264", format=format, options=options, metadata=METADATA
    )
    check_index(data, 12)
    assert probe_video(data, LIMITS).frames == 4


def test_an_index_beside_one_that_was_left_behind_is_taken() -> None:
    """Editors in place name the old one ``free``; FFmpeg reads that only where there is no other."""
    data = samples.video(4)
    old = hostile.mp4_free_bomb()
    check_index(data + old[old.index(b"free", 40) - 4 :], 14_400)


def test_a_description_longer_than_its_box_is_refused() -> None:
    data = bytearray(samples.video(4))
    at = data.index(b"stsd") + 12
    struct.pack_into(">I", data, at, 1 << 16)
    with pytest.raises(InvalidRequest, match="stsd is shorter than what it holds"):
        check_index(data, 14_400)


@pytest.mark.parametrize("name", [b"stts", b"stsc", b"stco", b"stss"])
def test_a_table_larger_than_its_box_is_refused(name: bytes) -> None:
    data = bytearray(samples.video(30))
    struct.pack_into(">I", data, data.index(name) + 8, 1 << 20)
    with pytest.raises(InvalidRequest, match=f"entries in {name.decode()}"):
        check_index(data, 1 << 30)


def test_the_times_of_fragments_are_no_counts() -> None:
    """``tfra`` names each fragment's time and place, after how many there are."""
    data = bytearray(samples.video(9, options={"movflags": "frag_keyframe+empty_moov"}))
    at = data.index(b"tfra") + 4
    struct.pack_into(">Q", data, at + 16, 1 << 40)
    check_index(data, 14_400)
    struct.pack_into(">I", data, at + 12, 1 << 20)
    with pytest.raises(InvalidRequest, match="1048576 entries in tfra"):
        check_index(data, 14_400)


def test_runs_of_time_stamps_are_counted() -> None:
    """``stts`` and ``ctts`` say in eight bytes how many frames they stand for."""
    data = bytearray(samples.video(30))
    struct.pack_into(">I", data, data.index(b"stts") + 12, 1 << 31)
    with pytest.raises(RequestTooLarge, match=f"{1 << 31} frames"):
        check_index(data, 14_400)


def test_boxes_in_boxes_end() -> None:
    deep = b""
    for _ in range(10_000):
        deep = struct.pack(">I", 8 + len(deep)) + b"moov" + deep
    with pytest.raises(RequestTooLarge, match="too many boxes"):
        check_index(samples.video(4) + deep, 14_400)
    with pytest.raises(RequestTooLarge, match="too many boxes"):
        check_index(struct.pack(">I", 8 + 8 * 300_000) + b"moov" + (struct.pack(">I", 8) + b"free") * 300_000, 14_400)


def test_a_compressed_index_is_refused() -> None:
    inner = struct.pack(">I", 16) + b"cmov" + bytes(8)
    with pytest.raises(InvalidRequest, match="compressed"):
        check_index(struct.pack(">I", 8 + len(inner)) + b"moov" + inner, 14_400)


def test_uncompressed_sound_is_no_index_of_frames() -> None:
    """Its table has a sample for each of the sound's; FFmpeg makes an entry of 1,024 of them."""
    data = samples.video_with_sound(10, 150)
    assert probe_video(data, MediaLimits.of(Settings(max_video_frames=10))).frames == 4
    with pytest.raises(RequestTooLarge):
        probe_video(data, MediaLimits.of(Settings(max_video_frames=9)))


@pytest.mark.parametrize("format", ["matroska", "avi"])
def test_frames_are_counted_without_an_index(format: str) -> None:
    data = samples.video(30, format=format)
    assert probe_video(data, MediaLimits.of(Settings(max_video_frames=30))).frames == 6
    with pytest.raises(RequestTooLarge, match="more than 29 frames"):
        probe_video(data, MediaLimits.of(Settings(max_video_frames=29)))


def test_frames_larger_than_their_header_are_refused() -> None:
    data = bytearray(samples.video(4, width=640, height=480, format="matroska"))
    for tag, value in ((b"\xb0\x82\x02\x80", 64), (b"\xba\x82\x01\xe0", 48)):
        at = data.index(tag)
        struct.pack_into(">H", data, at + 2, value)
    limits = MediaLimits.of(Settings(max_image_pixels=100_000))
    with pytest.raises(RequestTooLarge, match="640×480"):
        probe_video(bytes(data), limits)
    with pytest.raises(RequestTooLarge, match="640×480"):
        decode_video(bytes(data), limits)


# JPEG


@pytest.mark.parametrize("probe", [header_of_image, probe_image, decode_image])
def test_scans_have_a_bound(probe: Any) -> None:
    with pytest.raises(RequestTooLarge, match="more than 100 scans"):
        probe(hostile.jpeg_scan_bomb(101, 100), LIMITS)
    probe(hostile.jpeg_scan_bomb(50, 100), LIMITS)


def test_scans_times_pixels_have_a_bound() -> None:
    with pytest.raises(RequestTooLarge, match="more than 20 scans"):
        probe_image(hostile.jpeg_scan_bomb(2_000, 5_600), LIMITS)


@pytest.mark.parametrize("probe", [header_of_image, probe_image, decode_image])
def test_scans_have_a_bound_in_a_jpeg_of_several_pictures(probe: Any) -> None:
    with pytest.raises(RequestTooLarge, match="more than 100 scans"):
        probe(hostile.mpo_scan_bomb(101, 100), LIMITS)


def test_a_jpeg_of_several_pictures_is_its_first() -> None:
    """Cameras write one, with a preview or the other eye's picture behind."""
    file = io.BytesIO()
    first, second = Image.new("RGB", (300, 100), (200, 0, 0)), Image.new("RGB", (60, 100), (0, 0, 200))
    first.save(file, "MPO", save_all=True, append_images=[second] * 200)
    assert probe_image(file.getvalue(), LIMITS).width == 300
    decoded = decode_image(file.getvalue(), LIMITS)
    red, _, blue = np.asarray(decoded)[50, 50].tolist()
    assert (decoded.size, red > blue) == ((300, 100), True)


def test_a_jpeg_inside_a_segment_is_not_counted() -> None:
    """A thumbnail in the EXIF segment has scans of its own, which no decoder of the picture reads."""
    inside = hostile.jpeg_scan_bomb(60, 64)
    data = samples.image(300, 200, format="JPEG", progressive=True)
    segment = b"\xff\xe1" + struct.pack(">H", 2 + len(inside)) + inside
    assert probe_image(data[:2] + segment + data[2:], MediaLimits.of(Settings(max_image_scans=20))).width == 300


def test_an_encoders_progressive_jpeg_is_taken_at_the_largest_size() -> None:
    file = io.BytesIO()
    Image.new("RGB", (5_650, 5_650), (1, 2, 3)).save(file, "JPEG", progressive=True)
    assert probe_image(file.getvalue(), LIMITS).width == 5_650


# Audio


@pytest.mark.parametrize("probe", [header_of_audio, probe_audio])
def test_samples_of_all_channels_have_a_bound_by_the_header(probe: Any) -> None:
    with pytest.raises(RequestTooLarge, match="1840128000 samples"):
        probe(hostile.flac_silence(), LIMITS)


def test_samples_are_bounded_without_a_header() -> None:
    limits = MediaLimits.of(Settings(max_audio_samples=2_000_000))
    data = hostile.ogg_silence(30, rate=48_000, channels=8)
    assert header_of_audio(data, limits).samples == 1_600  # the least there is
    for decode in (probe_audio, lambda data, limits: decode_audio(data, 16_000, limits)):
        with pytest.raises(RequestTooLarge, match="samples or more in 8 channels"):
            decode(data, limits)


def test_decoding_stops_where_it_is_enough() -> None:
    data = hostile.ogg_silence(599, rate=16_000, channels=1)
    info = probe_audio(data, LIMITS, enough_s=30)
    assert 31 * 16_000 < info.samples < 40 * 16_000
    assert probe_audio(samples.audio(2.0, format="OGG"), LIMITS, enough_s=30).samples == 32_000


def test_channels_and_rates_are_settings() -> None:
    with pytest.raises(InvalidRequest, match="2 channels; at most 1"):
        probe_audio(samples.wav(channels=2), MediaLimits.of(Settings(max_audio_channels=1)))
    with pytest.raises(InvalidRequest, match="4000 to 8000 Hz"):
        probe_audio(samples.wav(rate=16_000), MediaLimits.of(Settings(max_audio_rate=8_000)))


# What a header says is what is decoded.


@pytest.mark.parametrize("format", ["WAV", "FLAC"])
def test_a_header_tells_the_length(format: str) -> None:
    data = samples.audio(0.7, rate=44_100, channels=2, format=format)
    assert header_of_audio(data, LIMITS) == probe_audio(data, LIMITS)


@pytest.mark.parametrize("format", ["PNG", "JPEG", "WEBP", "GIF"])
def test_a_header_tells_the_size(format: str) -> None:
    data = samples.image(300, 200, format=format)
    assert header_of_image(data, LIMITS) == probe_image(data, LIMITS)


@pytest.mark.parametrize("format", ["mp4", "matroska", "avi"])
def test_an_index_tells_frames_and_size(format: str) -> None:
    data = samples.video(30, width=1920, height=1080, format=format)
    assert header_of_video(data, LIMITS) == probe_video(data, LIMITS)
