"""Start, feed, capture, watch and judge one run."""
