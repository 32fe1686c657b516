"""`make bench`: aiordma against other transports for asyncio programs, in one run."""
