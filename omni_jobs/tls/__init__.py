"""TLS, as the connections of all rooms have it: whom this side trusts, and why it refuses a server."""
