"""`warmcell serve`: the same house, reached by HTTP. Loaded by nobody else; needs the extra `serve`."""
