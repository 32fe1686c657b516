from ._objects import PD, Handle

class MR(Handle):
    def __init__(
        self, pd: PD, length: int, access: int, address: int, *, iova: int | None = None
    ) -> None: ...
    @property
    def lkey(self) -> int: ...
    @property
    def rkey(self) -> int: ...

class DmaBufMR(MR):
    def __init__(
        self, pd: PD, length: int, access: int, fd: int, *, offset: int = 0, iova: int | None = None
    ) -> None: ...
