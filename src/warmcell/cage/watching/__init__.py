"""Measures the resources that process trees use, and enforces limits where no cgroup does: the watcher."""
