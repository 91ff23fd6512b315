"""The worker process that runs WebAssembly. The host imports only `protocol` from here."""
