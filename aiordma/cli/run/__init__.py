"""``aiordma run``: a program whose asyncio connections negotiate RDMA."""
