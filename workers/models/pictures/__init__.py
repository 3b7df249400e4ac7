"""What families that draw pictures have in common: parts of a checkpoint in Diffusers' layout, sides, times, a VAE.

It is no family. Its ``sides`` and ``source`` are light; the other modules need torch, and Diffusers where they
load or schedule.
"""
