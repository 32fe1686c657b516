"""Programs that exist: `aiordma run` and `aiordma.install()` put their asyncio connections on RDMA."""
