"""The network beneath RDMA: a planner and a simulator of lossless RoCE networks.

`model.load()` reads a network from TOML, `planner.plan()` works out what its switches and hosts must be set
to, with the formula and the source of each number. `suite.run()` sends traffic through it, packet by
packet, and `tune.tune()` searches for better thresholds. Needs nothing of RDMA, and nothing of aiordma, whose
command `aiordma fabric` shows it.
"""
