"""What families share that draw pictures or videos: parts of a checkpoint, descriptions, sides, times, a VAE.

It is no family. Its ``description``, ``sides`` and ``source`` are light; the other modules need torch, and Diffusers
where they load or schedule.
"""
