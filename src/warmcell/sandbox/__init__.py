"""The objects that an agent holds: `Sandbox` and `AsyncSandbox`, and the one-line `run`."""
