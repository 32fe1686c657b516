"""``aiordma smcr``: the host's set-up for SMC-R with programs on the kernel's own sockets."""
