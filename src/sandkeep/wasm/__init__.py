"""Runs WebAssembly in killable worker processes: pool, protocol, limits, cache of compiled modules.

Nothing here imports wasmtime; only the workers (`guest/wasm_*.py`) do.
"""
