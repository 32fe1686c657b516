"""Opening the devices of an event loop: in a thread, since it loads libraries and asks the system for much.

:func:`aiordma.links.engine.current` begins it, and makes the engine of what was opened.
"""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from ..errors import NegotiationError, VerbsError
from ..heap import keep_freed_memory
from ..verbs import hardware, softlib
from ..verbs.backend import device_list, open_backend
from ..verbs.cq import CompletionQueue
from ..verbs.lifetime import release_all
from ..wake.beside import Beside
from .host import host_id, whereabouts

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..config import Config
    from ..verbs.device import Backend
    from ..verbs.hardware import HardwareDevice
    from ..wake.base import Waker

#: Completions a link may have outstanding: its receives and its signalled sends.
_CQ_DEPTH = 16384

#: Loops of several threads may begin at the same time; libraries are loaded, and devices tried out, once.
_one_at_a_time = threading.Lock()


class OpenedDevice(NamedTuple):
    """What an engine is made of."""

    backend: Backend
    cq: CompletionQueue
    #: Equal for ends whose software devices can share memory: 16 bytes.
    host_id: bytes

    def close(self) -> None:
        release_all("an RDMA device", self.cq.close, self.backend.close)


class Surroundings(NamedTuple):
    """What opening a device takes from files. A loop that is running already must not wait for them."""

    #: The kernel's devices (:func:`aiordma.verbs.hardware.scan`).
    kernel: list[HardwareDevice]
    #: :func:`aiordma.links.host.whereabouts`.
    here: bytes


class FirstDevice(NamedTuple):
    """The first device of a loop that could be opened."""

    #: All that the settings mean (:func:`aiordma.verbs.backend.device_list`).
    names: list[str | None]
    #: Which one of them it is.
    number: int
    device: OpenedDevice
    #: Why those before it could not be used.
    problems: list[Exception]
    #: To open others with.
    around: Surroundings


def look_around() -> Surroundings:
    """:raises NegotiationError: there is no /proc."""
    return Surroundings(hardware.scan(), whereabouts())


def open_device(name: str | None, around: Surroundings) -> OpenedDevice:
    """:raises NegotiationError: or VerbsError or OSError: it cannot be used."""
    return with_queue(open_backend(name, around.kernel), around)


def with_queue(backend: Backend, around: Surroundings) -> OpenedDevice:
    """What an engine on an open device needs besides. The device is closed if that fails.

    :raises NegotiationError: or VerbsError: it cannot be used.
    """
    try:
        library = softlib.loaded() if backend.is_soft else None
        layout = None if library is None else library.layout
        return OpenedDevice(backend, CompletionQueue(backend, _CQ_DEPTH), host_id(layout, around.here))
    except BaseException:
        backend.close()
        raise


def open_first(config: Config) -> FirstDevice:
    """:raises NegotiationError: or VerbsError or OSError: no device can be used; why not the first one."""
    keep_freed_memory()
    with _one_at_a_time:
        names = device_list(config.device, config.soft_devices)
        problems: list[Exception] = []
        around = look_around()
        for index, name in enumerate(names):
            try:
                return FirstDevice(names, index, open_device(name, around), problems, around)
            except (NegotiationError, VerbsError, OSError) as error:
                problems.append(error)
        raise problems[0]


class DeviceOpening:
    """A loop opens its first device, in a thread.

    :param adopt: called in the loop with what was opened, which is its own from then on.
    :param done: called in the loop when all is over, also after an error.
    """

    def __init__(
        self,
        waker: Waker,
        config: Config,
        adopt: Callable[[DeviceOpening, FirstDevice], None],
        done: Callable[[DeviceOpening], None],
    ) -> None:
        self.waker, self.config = waker, config
        self._work = Beside(
            waker,
            partial(open_first, config),
            lambda first: adopt(self, first),
            discard=lambda first: first.device.close(),
            done=lambda: done(self),
        )

    @property
    def error(self) -> BaseException | None:
        """Why there is no device."""
        return self._work.error

    async def wait(self) -> None:
        """:raises NegotiationError: or VerbsError or OSError: no device can be used.
        :raises LoopEndedError: the loop ends.
        """
        await self._work.wait()
