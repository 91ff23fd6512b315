"""One module per kernel facility."""
