"""`Client` and `AsyncClient`: what `ProcessBackend` and `Sandbox` do, on another machine's `warmcell serve`."""
