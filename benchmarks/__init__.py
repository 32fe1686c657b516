"""`make bench`: aiordma against the other ways an asyncio program can move bytes, in one run."""
