"""`warmcell serve --workers N`: a process that listens, and those behind it."""
