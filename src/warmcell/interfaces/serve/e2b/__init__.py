"""E2B's protocol, at the root paths: what its SDKs speak, so that they work unmodified."""
