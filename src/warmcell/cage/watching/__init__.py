"""Measures what process trees use and enforces limits where no cgroup does; the watcher."""
