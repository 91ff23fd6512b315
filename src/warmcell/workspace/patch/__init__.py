"""Unified diffs: parsed, placed and applied, all or nothing."""
