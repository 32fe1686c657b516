"""CLC negotiation on the TCP connection: connect, accept, agree on RDMA, or fall back with a reason."""
