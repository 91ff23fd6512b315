"""Runs code in processes, caged by an enforcer unless the caller names the bare class."""
