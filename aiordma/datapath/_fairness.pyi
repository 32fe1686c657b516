from typing import Self

from typing_extensions import disjoint_base

@disjoint_base
class BatchReceiver: ...

@disjoint_base
class SendQueueWaiter(BatchReceiver): ...

@disjoint_base
class FairQueue:
    def __new__(cls) -> Self: ...
