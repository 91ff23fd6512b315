"""The files that an agent works on, accessed from the host: always through `root.Root`."""
