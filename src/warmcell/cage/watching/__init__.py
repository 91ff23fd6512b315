"""Ceilings that no cgroup keeps: what a tree of processes uses, and the watcher."""
