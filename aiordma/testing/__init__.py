"""What tests of programs on aiordma need: connections that break at will, and time that jumps."""

from .channel import MemoryChannel, memory_channels
from .virtual_time import VirtualLoop

__all__ = ["MemoryChannel", "VirtualLoop", "memory_channels"]
