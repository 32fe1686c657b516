"""asyncio's own surface on aiordma: its connection and datagram functions, transports and servers."""
