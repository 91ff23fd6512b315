"""Zygotes and warm cells. Cells are made ahead of time, leased once and destroyed."""
