"""A comm: messages of Dask on a stream of aiordma."""

from __future__ import annotations

import contextlib
import logging
import ssl
from typing import TYPE_CHECKING, Any, ClassVar

import dask
from anyio import BrokenResourceError, ClosedResourceError, EndOfStream, IncompleteRead
from anyio.streams.tls import TLSAttribute
from dask.utils import parse_bytes
from distributed.comm.core import Comm, CommClosedError
from distributed.comm.utils import from_frames, to_frames

from .buffers import POOL
from .frames import BadMessageError
from .inbox import Inbox
from .outbox import send_message
from .quick import is_quick

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aiordma import RdmaStream

    from .settings import Settings

__all__ = ["RdmaComm"]

logger = logging.getLogger("distributed.comm.aiordma")

_LOST = (
    EndOfStream,
    IncompleteRead,
    BrokenResourceError,
    ClosedResourceError,
    BadMessageError,
    ssl.SSLError,
)


class RdmaComm(Comm):
    """One connection between two of Dask's processes, over RDMA or over TCP (see :attr:`path`)."""

    max_shard_size: ClassVar[int] = parse_bytes(dask.config.get("distributed.comm.shard"))

    def __init__(
        self, stream: RdmaStream, local_addr: str, peer_addr: str, deserialize: bool, settings: Settings
    ) -> None:
        super().__init__(deserialize=deserialize)
        self._local_addr, self._peer_addr = local_addr, peer_addr
        self._stream: RdmaStream | None = stream
        self.path: str = stream.path
        self._inbox = Inbox(stream)
        stream.send_soon_limit = settings.write_behind
        POOL.limit = settings.pool

    @property
    def local_address(self) -> str:
        return self._local_addr

    @property
    def peer_address(self) -> str:
        return self._peer_addr

    @property
    def extra_info(self) -> dict[str, Any]:
        """Of ``rdmas://``: the peer's certificate and the cipher, as ``tls://`` has them."""
        stream = self._stream
        if stream is None:
            return {}
        cipher = stream.extra(TLSAttribute.cipher, None)
        if cipher is None:
            return {}
        return {"peercert": stream.extra(TLSAttribute.peer_certificate), "cipher": cipher}

    async def read(self, deserializers: Any = None) -> Any:
        """The next message.

        :raises CommClosedError: there is none: the comm is closed, or its peer is gone.
        """
        if self._stream is None:
            raise self._closed_error()
        with self._ending_on_errors():
            frames, quick = await self._inbox.next()
        try:
            return await from_frames(
                frames,
                deserialize=self.deserialize,
                deserializers=deserializers,
                allow_offload=self.allow_offload and not quick,
            )
        except EOFError:
            self.abort()
            raise CommClosedError(f"in {self!r}: a message that ends too early") from None

    async def write(self, msg: Any, serializers: Any = None, on_error: str = "message") -> int:
        """Send a message; returns its bytes. Does not wait for the peer, unless ``write-behind`` bytes wait.

        :raises CommClosedError: the comm is closed, or its peer is gone.
        """
        if self._stream is None:
            raise self._closed_error()
        quick = is_quick(msg)
        frames = await to_frames(
            msg,
            allow_offload=self.allow_offload and not quick,
            serializers=serializers,
            on_error=on_error,
            context={"sender": self.local_info, "recipient": self.remote_info, **self.handshake_options},
            frame_split_size=self.max_shard_size,
        )
        with self._ending_on_errors():
            if self._stream is None:  # closed while a thread was serialising
                raise self._closed_error()
            return await send_message(self._stream, frames, quick=quick)

    @contextlib.contextmanager
    def _ending_on_errors(self) -> Iterator[None]:
        """How much of a message has passed is not known then, so this comm cannot be used any more."""
        try:
            yield
        except _LOST as exc:
            self.abort()
            raise CommClosedError(f"in {self!r}: {str(exc) or type(exc).__name__}") from exc
        except BaseException:
            self.abort()
            raise

    def _closed_error(self) -> CommClosedError:
        return CommClosedError(f"in {self!r}: this end was closed")

    async def close(self) -> None:
        """Send what waits, and close."""
        stream, self._stream = self._stream, None
        if stream is not None:
            await stream.aclose()

    def abort(self) -> None:
        """Close at once: the peer gets an error."""
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.abort()

    def closed(self) -> bool:
        """Whether nothing can be read or written any more: closed here, by the peer, or lost."""
        stream = self._stream
        return stream is None or stream.closed or stream.at_eof
