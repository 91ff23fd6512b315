"""`warmcell serve`: the HTTP server. Needs the extra `serve`."""
