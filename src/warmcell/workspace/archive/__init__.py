"""Untrusted archives: strict readers of tar and zip."""
