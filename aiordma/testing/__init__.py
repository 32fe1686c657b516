"""What tests of programs on aiordma need: connections in memory that can be broken at will."""

from .channel import MemoryChannel, memory_channels

__all__ = ["MemoryChannel", "memory_channels"]
