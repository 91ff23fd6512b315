"""Patches as tools and models write them: parsed, placed and applied, all or nothing."""
