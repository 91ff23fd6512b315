"""Measures what this host can enforce and what a run costs on it."""
