"""Errors of the protocol state machines (re-exported by ``aiordma.errors``)."""

from __future__ import annotations

from typing import Any


class AioRdmaError(Exception):
    """Base of every error that aiordma defines itself."""


class ProtocolError(AioRdmaError):
    """A rule of one of aiordma's protocols was broken.

    :param message: what was wrong, and in which message or field.
    :param code: the diagnosis code (``aiordma.errors.Code``) to send to the peer; 0: none.
    """

    def __init__(self, message: str, code: int = 0) -> None:
        super().__init__(message)
        self.code = code

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.args[0], self.code)


class LocalProtocolError(ProtocolError):
    """This program asked a state machine for something its state does not allow."""


class RemoteProtocolError(ProtocolError):
    """The peer sent something that its state or the message format does not allow."""
