"""``aiordma perf``: throughput, rates and times to a server."""
