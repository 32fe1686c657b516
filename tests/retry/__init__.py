"""A test run in which a test that failed is tried once more, alone, and named if it passes then."""
