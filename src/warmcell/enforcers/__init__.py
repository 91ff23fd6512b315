"""Enforcers: the cages that a command can run in, and which of them work on this host."""
