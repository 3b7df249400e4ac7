"""An example of a causal language model with prompts of its own."""
