"""Sinks for events: an audit as JSON lines, OpenTelemetry, Prometheus. Each listens once it is made."""
