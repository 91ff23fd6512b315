"""Seats in agent frameworks, one small file each. Import the one that you need; each has an extra of its name."""
