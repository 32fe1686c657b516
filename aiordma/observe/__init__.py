"""Tracing of calls and links, and its export to OpenTelemetry."""
