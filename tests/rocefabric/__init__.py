"""Planner and simulator of lossless networks."""
