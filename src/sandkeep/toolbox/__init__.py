"""The command toolbox: WASM modules that Sandkeep ships, and how to find them."""
