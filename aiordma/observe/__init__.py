"""Looking into a running program: where the time of calls goes, and what is slow."""
