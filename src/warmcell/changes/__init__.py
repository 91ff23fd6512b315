"""Reversible changes: a guest's writes to a host directory are kept separate until they are committed."""
