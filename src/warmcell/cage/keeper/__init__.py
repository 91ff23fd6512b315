"""The keeper: an init that watches over its cell, where no cgroup keeps the limits or host paths are in sight."""
