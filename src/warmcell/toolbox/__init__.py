"""The command toolbox: WASM modules that Warmcell ships, and how to find them."""
