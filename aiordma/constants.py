"""Numbers of an engine that are no settings: nothing that a user can measure says what else they should be.

A :class:`~aiordma.config.Config` has them, so code reads them as it reads settings. Tests make
configurations with others (``tests/tuned.py``).
"""

from __future__ import annotations

from .proto.objects import LARGEST_LIMIT


class Constants:
    """Each with its reason."""

    __slots__ = ()

    #: Receives posted beyond the window: no more messages than this are outside it (acknowledgements, the end
    #: of a link, its control messages while the window is used up).
    recv_reserve = 8
    #: Largest ordinary memory region of the pool: large enough that ten thousand rings need few
    #: registrations, small enough that an unused one is soon given back.
    slab_bytes = 4 << 20
    #: WRITEs and READs from registered memory that are under way on an engine; what is beyond is queued,
    #: fairly by connection. Completion queues of all devices have room for so many.
    max_outstanding_wrs = 256
    #: Largest part of a transfer in one work request that is not inline: a short message behind it waits for
    #: one such part, which takes microseconds.
    fragment_bytes = 64 << 10
    #: Messages of channels up to this size go by SEND, and larger ones are pulled by READ: every receive of a
    #: link has so many bytes.
    small_message_bytes = 4 << 10
    #: Bytes of messages that a channel accepts while its user has not taken the earlier ones: eight times
    #: what the first ring of a stream takes.
    channel_receive_bytes = 4 << 20
    #: Closed queue pairs kept for reuse: a reconnecting client of each of a few peers finds one.
    qp_cache = 16
    #: A client returns tickets that it has not used for so long: it opens connections in bursts.
    ticket_idle_ms = 10_000
    #: A link without connections stays open for so long, since a peer that comes back needs no new one then.
    link_idle_ms = 60_000
    #: Longest time that a received message waits for its acknowledgement; where messages are further apart,
    #: acknowledging each costs another message.
    ack_delay_ms = 1_000
    #: A failed device is tried again after this time, which doubles with each further failure, up to 32
    #: times: opening a device costs milliseconds, and a cable is not mended sooner.
    device_retry_ms = 30_000

    keepalive_ms: int
    negotiate_timeout_ms: int
    max_message_objects: int

    @property
    def keepalive_timeout_ms(self) -> int:
        """Time for the probe of a silent link to complete: more than the 4 s for which a device repeats a
        request, and more where silence is tolerated for long."""
        return max(5_000, self.keepalive_ms // 2)

    @property
    def link_timeout_ms(self) -> int:
        """Time for Confirm Link on a new link, which is one more message of the negotiation."""
        return self.negotiate_timeout_ms

    @property
    def max_message_keys(self) -> int:
        """Keys in a message that are neither strings nor bytes, and so could collide: inserting n such keys
        may take n * n / 4 steps. Fewer objects than the least are not counted."""
        return max(1024, self.max_message_objects // 32)

    @property
    def max_connection_objects(self) -> int:
        """Objects in the arguments of all calls of one client that are in flight, and the last items of their
        streams; messages of 1000 bytes and less are not counted."""
        return min(4 * self.max_message_objects, LARGEST_LIMIT)
