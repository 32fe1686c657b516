"""How a stream leaves RDMA for its TCP connection without losing a byte, and how it rejoins."""
