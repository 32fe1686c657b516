"""``aiordma ping``: round trips to a server, and of all pairs of many."""
