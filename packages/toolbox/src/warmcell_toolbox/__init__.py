"""The WebAssembly modules of Warmcell, which finds them by the path of this package."""
