"""Links, link groups and the engine: RC queue pairs between two event loops, and what shares them."""
