"""Errors: what they say, that they travel between processes, and how they are translated at the borders."""

import errno
import os
import pickle

import pytest

from aiordma import errors


@pytest.mark.parametrize(
    "error",
    [
        errors.VerbsError(errno.ENOMEM, "ibv_reg_mr", "4 MiB; raise RLIMIT_MEMLOCK"),
        errors.VerbsError(0, "ibv_open_device"),
        errors.CompletionError(12, 0x81, "RDMA_WRITE", 77),
        errors.CompletionError(99, 0, "SEND", 1),
        errors.LinkError("retries used up", "10.0.0.2"),
        errors.NegotiationError(errors.Code.NO_DEVICE, "looked at /sys"),
        errors.NegotiationError(0x12345678),
        errors.RemoteProtocolError("bad cursor", 7),
        errors.LocalProtocolError("send after close"),
    ],
    ids=lambda e: type(e).__name__,
)
def test_errors_survive_pickling(error: errors.AioRdmaError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert vars(copy) == vars(error)


def test_verbs_error_is_an_oserror_with_operation() -> None:
    error = errors.VerbsError(errno.ENOMEM, "ibv_reg_mr", "4 MiB")
    assert isinstance(error, OSError)
    assert error.errno == errno.ENOMEM
    assert "ibv_reg_mr" in str(error)
    assert "4 MiB" in str(error)


def test_verbs_error_has_the_errno_of_providers_that_return_it_negative() -> None:
    error = errors.VerbsError(-errno.ENOMEM, "ibv_post_send")
    assert error.errno == errno.ENOMEM
    assert os.strerror(errno.ENOMEM) in str(error)


def test_completion_error_names_the_status() -> None:
    error = errors.CompletionError(12, 0x81, "RDMA_WRITE", 77)
    assert error.status_name == "RETRY_EXC_ERR"
    assert all(part in str(error) for part in ("RDMA_WRITE", "77", "0x81", "did not answer"))
    assert errors.wc_status_name(23) == "TM_RNDV_INCOMPLETE"
    assert errors.wc_status_name(24) == "STATUS_24"


def test_codes_are_those_of_smc() -> None:
    assert int(errors.Code.PEER_NO_SMC) == 0x03010000
    assert int(errors.Code.PEER_DECLINED) == 0x05000000
    assert len({code.text for code in errors.Code}) == len(errors.Code)
    assert "0xdeadbeef" in errors.describe(0xDEADBEEF)


def test_fallback_reason_says_who_decided() -> None:
    local = errors.FallbackReason.of_local(errors.Code.NO_DEVICE, "see ibv_devices")
    assert str(local).startswith("TCP 0x03030000: no RDMA device found: see ibv_devices")
    peer = errors.FallbackReason.of_peer(errors.Code.NO_DEVICE)
    assert (peer.local, peer.peer) == (0x05000000, 0x03030000)
    assert str(peer).startswith("TCP 0x05000000/0x03030000: the peer declined")
    caught = errors.FallbackReason.of_error(errors.NegotiationError(errors.Code.NO_DEVICE, "why"))
    assert caught.code == errors.Code.NO_DEVICE
    assert "why" in caught.text


def test_connection_errors_for_asyncio() -> None:
    broken = errors.LinkError("gone", "10.0.0.2")
    error = errors.as_connection_error(broken)
    assert isinstance(error, ConnectionResetError)
    assert error.__cause__ is broken
    pipe = BrokenPipeError("x")
    assert errors.as_connection_error(pipe) is pipe


def test_negotiation_errors_have_a_text_where_programs_look() -> None:
    """aiohttp, among others, shows an OSError by its ``strerror``."""
    error = errors.NegotiationError(errors.Code.DISABLED, "by the test")
    assert str(error) == f"{error.strerror} (0x{errors.Code.DISABLED:08x})"
    assert error.strerror == error.text
    assert errors.as_connection_error(ValueError("oh")).strerror == "oh"


def test_no_two_codes_are_the_same_number() -> None:
    """A second name for a number would silently become another word for the first, with its text."""
    aliases = {name: code.name for name, code in errors.Code.__members__.items() if name != code.name}
    assert aliases == {}


def test_the_codes_of_a_reason_have_names() -> None:
    local = errors.FallbackReason.of_local(errors.Code.DISABLED)
    assert (local.code, repr(local.code)) == (errors.Code.DISABLED, repr(errors.Code.DISABLED))
    peer = errors.FallbackReason.of_peer(0x03030000)
    assert peer.code is peer.peer is errors.Code.NO_DEVICE
    assert errors.FallbackReason.of_peer(0x0A1DFFFF).code == 0x0A1DFFFF
