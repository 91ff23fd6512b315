"""Zygotes and warm cells: made ahead of time, leased once, destroyed."""
