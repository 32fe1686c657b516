# cython: annotation_typing=False
"""One call, and the number of its method, as the machines of ``calls.py`` keep them.

Compiled as well (``call.pxd``), on the rules of ``cursor.py``.
"""

from __future__ import annotations

from typing import Any


class Call:
    """One call, as one end sees it. ``owner`` is whatever the owner of the machine keeps with it."""

    def __init__(self, call_id: int, serial: int, kind: int, owner: Any) -> None:
        self.id = call_id
        self.serial = serial
        self.kind = kind
        self.owner: Any = owner
        #: the REPLY was sent or received, or the connection is lost
        self.closed = False
        #: the client has cancelled: on its side everything but the REPLY is dropped
        self.cancelled = False
        #: the client has announced that it sends no more items
        self.ended = False
        #: HEADERS were sent or received, or cannot come any more
        self.headers = False
        #: bytes of items that may be sent; below zero after a large one
        self.send_window = 0
        #: bytes of items that may arrive; that this end granted; that were taken and not granted anew yet
        self.receive_window = 0
        self.receive_limit = 0
        self.owed = 0
        #: for the owner: objects of its arguments and its last item; short ones are not counted
        self.objects = 0
        #: on the owner's clock, in seconds; infinity: none
        self.deadline = float("inf")
        #: for the owner: the code with which this end stops it, 0: it does not
        self.stop = 0
        #: for the owner: the record of its times; None: not traced
        self.trace: Any = None
        #: where it is counted; None: it has not been sent
        self.method: MethodNumber | None = None


class MethodNumber:
    """The number a client has given to a method's name (0: the server's table is full), and its calls."""

    def __init__(self, number: int, name: bytes) -> None:
        self.number = number
        self.name = name
        #: calls that began, and of them those that ended without a result
        self.calls = 0
        self.errors = 0
        #: set by the owner when a CALL with the name has left: from then on the number is enough
        self.told = False
