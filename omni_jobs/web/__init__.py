"""The web server: one application of the HTTP API and the dashboard, and the server that listens for it."""
