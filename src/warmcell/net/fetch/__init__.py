"""Single requests, for the host or for a guest's `fetch()`: each hop checked, the body bounded and decoded."""
