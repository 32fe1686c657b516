"""Wheels: built for each Python that is at hand, and tried in empty environments."""
