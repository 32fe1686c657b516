"""Registered memory: regions that are cut into blocks, who may take how much, and waiting for more.

Registering memory is slow, so it is done in *slabs* (4 MiB, smaller for small peers) that are cut into
power-of-two *blocks* by a buddy allocator, as X-RDMA's per-thread cache does. One ``MemoryPool``
(:mod:`.pool`) belongs to one event loop's engine; an ``Arena`` (:mod:`.arena`) is the part of it that has one
protection domain, one set of access rights and one owner. The ``Budget`` (:mod:`.budget`) counts all memory
and keeps it below the limit; the ``MemoryQueue`` (:mod:`.queue`) calls what waits for memory, in turn.

Nothing here knows about the device: a ``Registrar`` (:mod:`.region`) makes and destroys registered regions.
"""
