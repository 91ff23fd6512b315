"""Single requests, for the host or for a guest's `fetch()`: checks each hop, bounds and decodes the body."""
