"""Our own API: `/v1` and `/openapi.json`."""
