"""The software verbs device, seen from outside: its exports, and unmodified programs on it."""
