"""``aiordma serve-diagnostics``: the server of ``aiordma ping`` and ``aiordma perf``."""
