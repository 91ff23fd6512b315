"""The worker process that runs WebAssembly: a package of its own, started from this directory, never imported by us."""
