"""Sandkeep runs code that you did not write."""
