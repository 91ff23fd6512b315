"""Files that run inside the cage. They are not imported; the cage loads them by path."""
