"""Clients and servers without aiordma, against programs under `aiordma run`: ``make test-clients``."""
