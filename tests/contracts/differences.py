"""Where aiordma does something else than plain asyncio. `docs/howto/run.md` gives users the reasons."""

from __future__ import annotations

from typing import NamedTuple


class Difference(NamedTuple):
    """A behaviour that need not be the plain loop's."""

    carriers: set[str]
    #: The words by which `docs/howto/run.md` gives the reason.
    reason: str
    loops: frozenset[str] = frozenset({"asyncio", "uvloop"})


_RESET = "the peer of a protocol whose callback has failed gets a reset by RDMA"
_ABORT = "the peer of an `abort()` that drops data gets a reset by RDMA"
_OWN_TLS = "Inside a session of TLS that aiordma goes on with, it gets a reset on either path"
_FIRST = "The first bytes of a client without RDMA have been read when they are given to the protocol"

_DESCRIPTOR = (
    "uvloop refuses `add_reader()` of the descriptor of a connection by RDMA only under `aiordma run`"
)

_FILES = "`loop.sendfile(..., fallback=False)` is refused by RDMA"

_KERNELS_SHUTDOWN = "shutdown() by the kernel alone gives both ends a reset by RDMA"

DIFFERENCES: dict[str, Difference] = {
    "an_empty_buffer": Difference({"tcp", "plain client"}, _FIRST),
    "buffers_of_an_error": Difference({"tcp", "plain client"}, _FIRST),
    "a_buffer_that_cannot_be_written": Difference({"tcp", "plain client"}, _FIRST),
    "an_error_of_buffer_updated": Difference({"rdma", "installed"}, _RESET),
    "an_error_of_data_received": Difference({"rdma", "installed"}, _RESET),
    "an_error_of_data_received_after_start_tls": Difference({"rdma", "installed"}, _RESET),
    "an_error_of_data_received_in_own_tls": Difference(
        {"rdma", "tcp", "plain client", "plain server"}, _OWN_TLS
    ),
    "a_cancellation_in_data_received": Difference({"rdma", "installed"}, _RESET),
    "an_error_of_eof_received": Difference({"rdma", "installed"}, _RESET),
    "the_peer_of_an_abort": Difference({"rdma", "installed"}, _ABORT),
    "a_writer_that_aborts_much": Difference({"rdma", "installed"}, _ABORT),
    "a_file_without_the_kernels_help": Difference({"rdma", "installed"}, _FILES, frozenset({"asyncio"})),
    "a_descriptor_that_is_shut_down": Difference({"rdma", "installed"}, _KERNELS_SHUTDOWN),
    "a_descriptor_in_use": Difference({"rdma"}, _DESCRIPTOR, frozenset({"uvloop"})),
}
