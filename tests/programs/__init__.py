"""Other projects' own test suites, without aiordma and under `aiordma run`: ``make test-programs``."""
