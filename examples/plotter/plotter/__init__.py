"""An example of a runner added from outside: it draws curves, and needs no model."""
