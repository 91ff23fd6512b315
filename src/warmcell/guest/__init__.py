"""Files that run inside the cage. Nobody imports them; the cage loads them by path."""
