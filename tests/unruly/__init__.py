"""A family whose model hangs, or raises, where and while a file says so; for tests of the runners on vLLM.

family  the declaration, its installation, and what tests ask of the model; light
model   the model's class, for vLLM's processes alone
"""
