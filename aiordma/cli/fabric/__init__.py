"""``aiordma fabric``: the planner and simulator of lossless networks, as a command."""
