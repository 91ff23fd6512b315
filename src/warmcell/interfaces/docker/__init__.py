"""The Docker Engine API on a Unix socket: `warmcell serve --docker-socket PATH` (docs/docker.md)."""
