"""The media types that a browser may show, because nothing in them runs."""

SHOWN_TYPES = frozenset(
    {
        *("audio/wav", "audio/flac", "audio/mpeg", "audio/ogg", "audio/aac"),
        *("image/png", "image/jpeg", "image/webp"),
        *("video/mp4", "video/webm"),
    }
)
"""Artifacts of other types leave as bytes to be saved."""
