"""uvicorn: servers that serve by RDMA, too, on the same port.

::

    uvicorn.run(app, loop="aiordma.integrations.uvicorn:asyncio")

or ``uvicorn --loop aiordma.integrations.uvicorn:uvloop app:app``, also with ``--workers`` and ``--reload``.
Versions of uvicorn before 0.36 know their own names of loops only, and fail with a ``KeyError``; a program
that imports this module is told the versions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..launch.loops import new_event_loop
from ._versions import check_version

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

check_version("uvicorn")

__all__ = ["asyncio", "uvloop"]


def asyncio() -> AbstractEventLoop:
    """A new loop of asyncio's whose connections negotiate RDMA."""
    return new_event_loop()


def uvloop() -> AbstractEventLoop:
    """One of uvloop's.

    :raises ImportError: uvloop is not installed.
    """
    return new_event_loop(uvloop=True)
