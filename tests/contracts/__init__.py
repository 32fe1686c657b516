"""Behaviours of asyncio on every path: written once, run everywhere, compared with the plain loop."""
