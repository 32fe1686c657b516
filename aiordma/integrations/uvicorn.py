"""uvicorn: servers that serve by RDMA, too, on the same port.

::

    uvicorn.run(app, loop="aiordma.integrations.uvicorn:asyncio")

or ``uvicorn --loop aiordma.integrations.uvicorn:uvloop app:app``, also with ``--workers`` and ``--reload``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..launch.loops import new_event_loop

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

__all__ = ["asyncio", "uvloop"]


def asyncio() -> AbstractEventLoop:
    """A new loop of asyncio's whose connections negotiate RDMA."""
    return new_event_loop()


def uvloop() -> AbstractEventLoop:
    """One of uvloop's.

    :raises ImportError: uvloop is not installed.
    """
    return new_event_loop(uvloop=True)
