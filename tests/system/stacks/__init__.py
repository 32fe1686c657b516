"""Other people's programs on the software device: ``make test-stacks``."""
