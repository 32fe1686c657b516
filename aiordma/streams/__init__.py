"""Byte streams, the objects that users hold: ``aiordma.connect()`` and ``aiordma.listen()``."""
