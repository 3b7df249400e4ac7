"""An example of a model added from outside: a Llama whose inputs are tinted."""
