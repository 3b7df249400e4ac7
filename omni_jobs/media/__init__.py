"""Audio, images and video of a request, from encoded bytes to what a model takes.

probe_audio, probe_image, probe_video     at the edge: accepted, and how large, or InvalidRequest
decode_audio, decode_image, decode_video  in a worker: the samples and pixels themselves

They stand in ``audio``, ``image`` and ``video``, which load libsndfile, Pillow and FFmpeg;
this package itself loads none of them.

What bytes are is told from the bytes, never from the type a client claims; only the
containers listed in each module are handed to a decoder. Sizes are checked from
headers before anything is decoded. Errors carry no field: the caller knows it.
"""

from __future__ import annotations

from omni_jobs.media.info import AudioInfo, ImageInfo, MediaInfo, VideoInfo

__all__ = ["AudioInfo", "ImageInfo", "MediaInfo", "VideoInfo"]
