"""What tests of programs on aiordma need: connections that break at will, and time that jumps."""

from .channel import MemoryChannel, memory_channels
from .device_faults import DeviceFaults
from .virtual_time import VirtualLoop

__all__ = ["DeviceFaults", "MemoryChannel", "VirtualLoop", "memory_channels"]
