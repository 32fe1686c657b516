from ._objects import PD, Handle

class MR(Handle):
    def __init__(
        self, pd: PD, length: int, access: int, address: int, *, iova: int | None = None
    ) -> None: ...
    @property
    def lkey(self) -> int: ...
    @property
    def rkey(self) -> int: ...
    def rereg(
        self, flags: int, pd: PD | None = None, addr: int = 0, length: int = 0, access: int = 0
    ) -> None: ...

class DmaBufMR(MR):
    def __init__(
        self, pd: PD, length: int, access: int, fd: int, *, offset: int = 0, iova: int | None = None
    ) -> None: ...
