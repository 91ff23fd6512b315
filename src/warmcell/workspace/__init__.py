"""The files that an agent works on, seen from the host: every access goes through `paths.Root`."""
