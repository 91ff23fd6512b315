"""Event sinks: audit log, OpenTelemetry, Prometheus, activity and history. Each listens from construction on."""
