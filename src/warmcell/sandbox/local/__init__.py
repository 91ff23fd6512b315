"""Sandboxes on this host: the drivers behind `AsyncSandbox`."""
