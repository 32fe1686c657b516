from typing_extensions import Buffer, disjoint_base

def fetch_and_add(address: int, value: int) -> int: ...
def compare_and_swap(address: int, expected: int, value: int) -> int: ...
def address_of(data: Buffer) -> int: ...
def bytes_of(data: Buffer) -> memoryview: ...

@disjoint_base
class MemoryWindow:
    readonly: bool
    opaque: bool
    nbytes: int
    owner: object
    def __init__(
        self,
        address: int,
        shape: tuple[int, ...],
        itemsize: int,
        format: str,
        *,
        owner: object,
        readonly: bool = False,
        opaque: bool = False,
    ) -> None: ...
    @property
    def address(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
