"""Patches: unified diffs and the format of coding agents, applied all or nothing."""
