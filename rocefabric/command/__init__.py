"""The commands of ``aiordma fabric``: the planner and simulator of lossless networks on a terminal."""
