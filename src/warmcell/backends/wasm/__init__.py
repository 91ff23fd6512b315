"""Runs WebAssembly in worker processes, inside the cage where there is one."""
