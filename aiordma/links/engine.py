"""The engines of event loops: each is made on first use, and ends with its loop.

A loop has one engine for each device that it uses, and looks for it here.
"""

from __future__ import annotations

import atexit
import os
import threading
from functools import partial
from typing import TYPE_CHECKING

from .. import wake
from ..config import Config
from ..errors import Code, NegotiationError, VerbsError
from ..observe import companion
from ..wake.base import run_guarded
from ..wake.beside import LoopEndedError
from .device_engine import ENGINE, ENGINES, Engine, ready, running
from .devices import Devices
from .first_device import DeviceOpening, FirstDevice, look_around, open_device, with_queue

if TYPE_CHECKING:
    from ..verbs.device import Backend
    from ..wake.base import Waker
    from .first_device import Surroundings

__all__ = ["ENGINES", "Engine", "begin_on", "current", "open_another", "ready", "running"]

#: Where it has the opening of its first device, while that is under way.
_OPENING = "opening"


@atexit.register
def _end_with_interpreter() -> None:
    """End the engines of loops of this thread that were neither closed nor shut down. (A loop of another
    thread may run until the process is gone.)"""
    for engine in list(ENGINES.values()):
        if engine.waker.pid == os.getpid() and getattr(engine.waker, "thread", None) == threading.get_ident():
            run_guarded(partial(engine._end_now, True))


#: Why no device can be used, by its name. Not the errors: their tracebacks would keep the loop alive.
_refusals: dict[str | None, tuple[int, str]] = {}


async def current(config: Config | None = None) -> Engine:
    """The running loop's engine, made on first use with the offline settings of ``config``.

    The device is opened in a thread, once for all tasks that ask meanwhile; the loop goes on.

    :raises NegotiationError: RDMA is not available; the reason is remembered for the life of the process.
    """
    waker = wake.current()
    config = config or Config.from_env()
    while (engine := ready(waker)) is None:
        refusal = _refusals.get(config.device)
        if refusal is not None:
            raise NegotiationError(*refusal)
        opening: DeviceOpening | None = waker.locals.get(_OPENING)
        if opening is None:
            opening = waker.locals[_OPENING] = DeviceOpening(waker, config, _adopt, _end_opening)
        try:
            await opening.wait()
        except NegotiationError as error:
            if opening.config.device == config.device:
                raise NegotiationError(error.code, error.detail) from error.__cause__
        except LoopEndedError:
            raise NegotiationError(Code.SHUTTING_DOWN) from None
        except (VerbsError, OSError) as error:
            raise NegotiationError(Code.DEVICE_FAILURE, str(error)) from error
    return engine


def _begin(waker: Waker, config: Config, first: FirstDevice) -> None:
    """Make the loop's engine of what was opened for it."""
    try:
        devices = Devices(waker, config, first.names, partial(open_another, first.around))
        for index, problem in enumerate(first.problems):
            devices.cannot_open(index, problem)
        engine = devices.add(first.number, Engine(devices, first.device))
    except BaseException:
        first.device.close()
        raise
    waker.locals[ENGINE] = ENGINES[id(waker)] = engine
    companion.begin(waker, config)


def _adopt(opening: DeviceOpening, first: FirstDevice) -> None:
    waker = opening.waker
    if waker.locals.get(ENGINE) is None:
        _begin(waker, opening.config, first)
    else:  # use_device() was faster
        first.device.close()


def _end_opening(opening: DeviceOpening) -> None:
    del opening.waker.locals[_OPENING]
    if isinstance(opening.error, NegotiationError):
        _refusals[opening.config.device] = opening.error.code, opening.error.detail


def open_another(around: Surroundings, devices: Devices[Engine], index: int) -> Engine:
    """In the loop: it reads no file, and takes what the files said to the first one.

    :raises NegotiationError: or VerbsError or OSError: it cannot be used.
    """
    return Engine(devices, open_device(devices.names[index], around))


def begin_on(backend: Backend, config: Config) -> None:
    """Make the running loop's engine on an open device, which ends with it.

    :raises RuntimeError: the loop has an engine. :raises VerbsError: a call failed.
    """
    waker = wake.current()
    present: Engine | None = waker.locals.get(ENGINE)
    if present is not None:
        backend.close()
        raise RuntimeError(
            f"this event loop uses RDMA device {present.backend.name} already: call use_device() before its "
            "first connection or listener"
        )
    around = look_around()
    _begin(waker, config, FirstDevice([backend.name], 0, with_queue(backend, around), [], around))
