"""``aiordma preload``: other programs on the software RDMA device."""
