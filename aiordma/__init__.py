"""aiordma: asyncio-native RDMA networking for Python."""
