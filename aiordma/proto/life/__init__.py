"""Parts of a stream's life as state machines: its end on TCP, and an attempt to come back to RDMA.

They do no I/O and read no clock. Their owner reports what happens and carries out the outputs, in their
order and without a turn of the loop in between. ``docs/explanation/life-of-a-stream.md`` shows which object
has each other part, and the machine of the tests that describes all of them together.
"""
