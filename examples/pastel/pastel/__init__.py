"""An example of a diffusion model added from outside: it draws a picture of a text."""
