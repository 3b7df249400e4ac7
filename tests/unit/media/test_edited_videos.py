"""Videos whose headers count other frames than are shown: with edits, from a pipe, and in a transport stream."""

import struct

import numpy as np
import pytest

from omni_jobs.errors import InvalidRequest
from omni_jobs.media.media_limits import MediaLimits
from omni_jobs.media.video import decode_video, header_of_video, probe_video
from omni_jobs.settings import Settings
from tests.oracles import samples

LIMITS = MediaLimits.of(Settings())
FRAMES, FPS = 40, 10


def edited(first: int, frames: int, *, faststart: bool = False) -> bytes:
    """An MP4 of 40 frames, 10 a second, whose edit shows ``frames`` of them from the ``first`` on."""
    options = {"movflags": "faststart"} if faststart else None
    clip = bytearray(samples.video(FRAMES, fps=FPS, options=options))
    edit = clip.index(b"elst") + 12
    (length,) = struct.unpack_from(">I", clip, edit)  # in units of the whole file
    (scale,) = struct.unpack_from(">I", clip, clip.index(b"mdhd") + 16)
    struct.pack_into(">Ii", clip, edit, length * frames // FRAMES, first * scale // FPS)
    return bytes(clip)


@pytest.mark.parametrize(("first", "frames"), [(0, 20), (12, 20), (20, 20), (33, 7), (17, 10)])
def test_what_an_edit_leaves_out_is_not_seen(first: int, frames: int) -> None:
    clip = edited(first, frames)
    info = probe_video(clip, LIMITS)
    assert info.duration_s == pytest.approx(frames / FPS, abs=0.11)
    assert header_of_video(clip, LIMITS).frames == info.frames
    seen, metadata = decode_video(clip, LIMITS)
    assert len(seen) == info.frames
    expected = [240 * (first + index) / FRAMES for index in metadata["frames_indices"]]
    assert metadata["frames_indices"][0] == 0
    assert np.abs(seen[:, 20, 20, 0] - np.array(expected)).max() < 8


def test_an_edited_video_that_lacks_its_end_is_refused() -> None:
    clip = edited(5, 30, faststart=True)
    with pytest.raises(InvalidRequest, match="cut off"):
        probe_video(clip[:-600], LIMITS)


def test_an_avi_that_was_piped_is_taken() -> None:
    clip = bytearray(samples.video(10, format="avi"))
    for name, at in ((b"avih", 24), (b"strh", 40)):
        struct.pack_into("<I", clip, clip.index(name) + at, 1 << 30)
    assert probe_video(bytes(clip), LIMITS).frames == decode_video(bytes(clip), LIMITS)[0].shape[0] == 4


@pytest.mark.parametrize("codec", ["mpeg4", "libx264"])
def test_a_transport_stream_is_taken(codec: str) -> None:
    clip = samples.video(10, codec=codec, format="mpegts")
    info = probe_video(clip, LIMITS)
    assert (info.media_type, info.frames, info.width, info.height) == ("video/mp2t", 4, 64, 48)
    seen, _ = decode_video(clip, LIMITS)
    assert np.abs(seen[:, 20, 20, 0].astype(int) - [0, 60, 120, 180]).max() < 20
