"""Changes that can be taken back: a guest's writes to a host directory, kept apart until they are committed."""
