"""Snapshots of directories, as content-addressed chunks in packs."""
