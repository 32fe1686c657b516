"""The report of a channel's end to its user, who may ask for it when the end has come already."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from ..wake.escaping import contain

if TYPE_CHECKING:
    from collections.abc import Callable

    OnClosed = Callable[[BaseException | None], None]

_log = logging.getLogger("aiordma.channel")


class EndReport:
    """``on_closed`` of one channel (``contracts.Channel``): called once.

    :param call_soon: of the loop. A callback that is set behind the end is called from there.
    """

    __slots__ = ("_call_soon", "_callback", "_error", "_waits")

    def __init__(self, call_soon: Callable[[Callable[[], None]], object]) -> None:
        self._call_soon = call_soon
        self._callback: OnClosed | None = None
        self._error: BaseException | None = None
        self._waits = False  # the end has come, and has not been reported

    @property
    def callback(self) -> OnClosed | None:
        """Whom to tell."""
        return self._callback

    @callback.setter
    def callback(self, callback: OnClosed | None) -> None:
        self._callback = callback
        if callback is not None and self._waits:
            self._call_soon(self._tell)

    def end(self, error: BaseException | None) -> None:
        """The end has come: in order (None), or by an error."""
        self._error, self._waits = error, True
        self._tell()

    def drop(self) -> None:
        """There is nothing to report any more: this end was closed by its user."""
        self._callback, self._waits = None, False

    def _tell(self) -> None:
        callback = self._callback
        if callback is None or not self._waits:
            return
        self._callback, self._waits = None, False
        try:
            callback(self._error)
        except BaseException as failure:
            _log.exception("on_closed of a channel failed")
            contain(failure)
