"""``aiordma doctor``: does RDMA work here, and if not, what is to be done."""
