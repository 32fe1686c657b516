"""Errors of calls: gRPC's codes, bounded text, that they travel between processes."""

from __future__ import annotations

import pickle

import pytest

from aiordma.rpc.errors import MAX_DETAILS_BYTES, MAX_MESSAGE_CHARS, Code, RpcCancelled, RpcError, RpcTimeout


def test_codes_are_those_of_grpc() -> None:
    names = (
        "OK CANCELLED UNKNOWN INVALID_ARGUMENT DEADLINE_EXCEEDED NOT_FOUND ALREADY_EXISTS PERMISSION_DENIED "
        "RESOURCE_EXHAUSTED FAILED_PRECONDITION ABORTED OUT_OF_RANGE UNIMPLEMENTED INTERNAL UNAVAILABLE "
        "DATA_LOSS UNAUTHENTICATED"
    ).split()
    assert [code.name for code in Code] == names
    assert [code.value for code in Code] == list(range(17))


def test_a_code_of_a_newer_peer_is_unknown() -> None:
    assert Code.from_wire(14) is Code.UNAVAILABLE
    assert Code.from_wire(17) is Code.UNKNOWN
    assert Code.from_wire(255) is Code.UNKNOWN


@pytest.mark.parametrize("code", [code for code in Code if code is not Code.OK], ids=lambda code: code.name)
def test_errors_survive_pickling(code: Code) -> None:
    error = RpcError.of(code, "no such key", b"\x00details", {"k": b"v", "t": "x"})
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error) == f"{code.name}: no such key"
    assert vars(copy) == vars(error)
    assert not copy.not_started
    error.not_started = True
    assert pickle.loads(pickle.dumps(error)).not_started


def test_classes_follow_the_code() -> None:
    assert isinstance(RpcError.of(4, "late"), TimeoutError)
    assert type(RpcError.of(Code.DEADLINE_EXCEEDED)) is RpcTimeout
    assert type(RpcError.of(Code.CANCELLED)) is RpcCancelled
    assert type(RpcError.of(Code.ABORTED)) is RpcError
    assert str(RpcError.of(Code.ABORTED)) == "ABORTED"


def test_what_an_error_cannot_be() -> None:
    with pytest.raises(ValueError, match="not an error"):
        RpcError(Code.OK)
    with pytest.raises(ValueError, match="99"):
        RpcError(99)
    with pytest.raises(ValueError, match=str(MAX_DETAILS_BYTES)):
        RpcError(Code.INTERNAL, details=bytes(MAX_DETAILS_BYTES + 1))


def test_long_messages_are_cut() -> None:
    error = RpcError(Code.INTERNAL, "x" * 5000)
    assert len(error.message) == MAX_MESSAGE_CHARS
    assert error.message.endswith("...")
