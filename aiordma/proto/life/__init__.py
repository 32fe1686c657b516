"""The life of one stream as one state machine: opening, end, close, abort, leaving RDMA, and coming back.

:class:`~.stream.StreamLife` does no I/O and reads no clock. Its owner reports what happens and carries out
the outputs that each report returns, in their order and without a turn of the loop in between. ``states.py``
has the states and the table of transitions. ``docs/explanation/life-of-a-stream.md`` shows which object of
``pipes`` and ``links`` has each part of it today: the product loads the parts that it drives, ``frames.py``
and ``attempt.py``, and ``whole.py`` names the rest.
"""
