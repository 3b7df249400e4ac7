"""Decode the audio, images and video of a request.

header_of_audio, header_of_image, header_of_video  return a medium's sizes by its header
probe_audio, probe_image, probe_video              decode as much as is needed to accept a medium
decode_audio, decode_image, decode_video           return samples and pixels for a model

These functions stand in ``audio``, ``image`` and ``video``, which load libsndfile, Pillow and FFmpeg, and run in
decoders, processes behind ``wall``. This package itself loads no media library.

Each module recognises a medium by its bytes, never by the type that a client claims, decodes only the containers that
it lists, and checks sizes by headers before it decodes anything. It raises InvalidRequest for bytes that are no such
medium, are cut off or do not decode, and RequestTooLarge for a medium beyond the limits. The errors carry no field:
only callers know it.
"""

from omni_jobs.media.info import AudioInfo, ImageInfo, MediaInfo, VideoInfo

__all__ = ["AudioInfo", "ImageInfo", "MediaInfo", "VideoInfo"]
