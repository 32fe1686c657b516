"""Behaviours of asyncio that hold on every path: written once, run everywhere, compared with the plain loop."""
