"""One file per kernel facility: data and one verb each."""
