"""Live state and spans for Prometheus and OpenTelemetry."""
