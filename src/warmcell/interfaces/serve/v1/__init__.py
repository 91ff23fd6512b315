"""Our own API: `/v1` and what describes it."""
