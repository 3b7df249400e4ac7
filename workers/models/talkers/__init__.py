"""What families share that speak by a talker: its part of a checkpoint's config, and its class as vLLM runs it.

It is no family. Its ``component`` is light; ``informed_talker`` needs torch and vLLM.
"""
