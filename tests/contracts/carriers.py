"""What a behaviour runs on: plain ends, aiordma by RDMA, on TCP, with a plain end on either side; and plain
functions in a process where `aiordma.install()` has replaced them."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal
from unittest import mock

import aiordma
from aiordma.config import Config
from tests.world import DEVICE

if TYPE_CHECKING:
    from collections.abc import Iterator

#: A client that the machine holds up must not count as a silent, plain one; nor a server.
_PATIENT = Config(
    device=DEVICE, server_first_wait_ms=60_000, head_start_ms=60_000, negotiate_timeout_ms=60_000
)
#: A client that says nothing, and does not negotiate, is served at once.
_AT_ONCE = Config(device=DEVICE, server_first_wait_ms=0)
_NO_SETTINGS = {"start_tls"}


class Functions:
    """asyncio's functions and methods: plain ones, or aiordma's of the same names."""

    def __init__(self, config: Config | None = None, mode: Literal["rdma", "tcp"] | None = None) -> None:
        self.ours = config is not None
        self._config = config
        self._settings: dict[str, Any] = (
            {"config": config} if mode is None else {"config": config, "mode": mode}
        )

    def own_tls(self) -> dict[str, Any]:
        """Options of a connection that is negotiated inside TLS and stays there, on aiordma's transport."""
        if self._config is None:
            return {}
        return {
            "rdma_outside_tls": True,
            "config": dataclasses.replace(self._config, device="none"),
            "mode": "auto",
        }

    def __getattr__(self, name: str) -> Any:
        if not self.ours:
            module: Any = (
                asyncio if name in ("open_connection", "start_server") else asyncio.get_running_loop()
            )
            return getattr(module, name)
        function = getattr(aiordma, name)
        return function if name in _NO_SETTINGS else functools.partial(function, **self._settings)


@dataclass(frozen=True)
class Carrier:
    """The two ends of every connection of a behaviour."""

    name: str
    client: Functions
    server: Functions
    #: What a connection must be on, or the behaviour was not tried. None: it is a plain end's, or on TCP.
    path: str | None = None
    installed: bool = False

    @contextlib.contextmanager
    def at_work(self) -> Iterator[None]:
        """While its behaviours are played."""
        if not self.installed:
            yield
            return
        with mock.patch.dict(os.environ, INSTALLED_ENVIRONMENT):
            aiordma.install(remember=False)
            try:
                yield
            finally:
                aiordma.uninstall()


#: The settings of `_PATIENT`, for a process whose program says nothing of aiordma.
INSTALLED_ENVIRONMENT = {
    "AIORDMA_DEVICE": DEVICE,
    **{f"AIORDMA_{name}_MS": "60000" for name in ("SERVER_FIRST_WAIT", "HEAD_START", "NEGOTIATE_TIMEOUT")},
}

PLAIN = Carrier("plain", Functions(), Functions())
CARRIERS = [
    Carrier("rdma", Functions(_PATIENT), Functions(_PATIENT), "rdma"),
    Carrier("tcp", Functions(_AT_ONCE, "tcp"), Functions(_AT_ONCE, "tcp")),
    Carrier("plain server", Functions(_PATIENT), Functions()),
    Carrier("plain client", Functions(), Functions(_AT_ONCE)),
    Carrier("installed", Functions(), Functions(), "rdma", installed=True),
]
#: The last one in a process of `aiordma run`, which has installed it.
UNDER_RUN = Carrier("installed", Functions(), Functions(), "rdma")
