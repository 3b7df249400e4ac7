"""Turn a job's messages into a prompt, and count its tokens, with one renderer per family.

Admission counts tokens and a worker renders the prompt with the same renderer (``renderers``), so both agree. A
renderer imports neither torch nor transformers.
"""
