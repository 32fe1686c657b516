from typing import NamedTuple

from typing_extensions import disjoint_base

class DeviceEntry(NamedTuple):
    name: bytes

class VerbsCallError(Exception):
    error_code: int
    def __init__(self, text: str, error_code: int) -> None: ...

@disjoint_base
class Library:
    path: str
    def __init__(self, path: str, *, versioned: bool) -> None: ...
    def device_list(self) -> list[DeviceEntry]: ...
