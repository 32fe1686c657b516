"""The TCP option of SMC: Linux' six bytes, aiordma's eight, and headers in which anything may stand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiordma.proto.errors import LocalProtocolError
from aiordma.proto.syn_option import SynOption, find, find_in_packet

# The options of a SYN and of the SYN-ACK to it, between two kernels of Linux 6.12.
KERNEL_SYN = bytes.fromhex("020405b40402080a85b25cf600000000010303070101fe06e2d4c3d9")
KERNEL_SYN_ACK = bytes.fromhex("020405b40402080aa98cdfeb85b25cf6010303070101fe06e2d4c3d9")
PLAIN = KERNEL_SYN[:20]


def ipv4(options: bytes, more: bytes = b"") -> bytes:
    ip = bytes((0x45 + len(more) // 4,)) + bytes(8) + b"\6" + bytes(10) + more
    return ip + bytes(12) + bytes(((5 + len(options) // 4) << 4,)) + bytes(7) + options


def ipv6(options: bytes, extensions: bytes = b"", kind: int = 6) -> bytes:
    ip = b"\x60" + bytes(5) + bytes((kind,)) + bytes(33) + extensions
    return ip + bytes(12) + bytes(((5 + len(options) // 4) << 4,)) + bytes(7) + options


def test_kernels() -> None:
    assert find(KERNEL_SYN) == find(KERNEL_SYN_ACK) == SynOption()
    assert SynOption().encode() == KERNEL_SYN[-6:]
    assert not SynOption().is_aiordma
    assert find(PLAIN) is None


def test_aiordma() -> None:
    syn, answer = SynOption(1), SynOption(1, in_answer=True)
    for option in syn, answer, SynOption(255), SynOption():
        assert find(PLAIN + option.encode()) == option
    assert len(syn.encode()) == 8  # which Linux takes, both ways
    assert syn.encode()[:2] == b"\xfe\x08"
    assert syn.encode()[2:6] == KERNEL_SYN[-4:]
    assert syn.is_aiordma
    with pytest.raises(LocalProtocolError):
        SynOption(256).encode()


def test_an_echo_is_known() -> None:
    """What returns the option of a SYN returns what no answer is; of a kernel's, nobody can tell."""
    found = [find(PLAIN + SynOption(1, in_answer=answers).encode()) for answers in (False, True)]
    assert [option.in_answer for option in found if option is not None and option.is_aiordma] == [False, True]
    assert find(KERNEL_SYN) == find(KERNEL_SYN_ACK)


@pytest.mark.parametrize(
    "options",
    [
        b"",
        b"\xfe",
        b"\xfe\x06",
        b"\xfe\x06\xe2\xd4\xc3",
        b"\xfe\x04\xe2\xd4",
        b"\xfe\x07\xe2\xd4\xc3\xd9\0",  # odd: Linux does not take it
        b"\xfe\x06\xe2\xd4\xc3\xd8",
        b"\xfd\x06\xe2\xd4\xc3\xd9",
        b"\0\xfe\x06\xe2\xd4\xc3\xd9",  # behind the end
        b"\x02\x00" + KERNEL_SYN[-6:],  # an option without a length
        b"\x02\x01" + KERNEL_SYN[-6:],
        b"\x02\x20" + KERNEL_SYN[-6:],
    ],
)
def test_what_is_no_option(options: bytes) -> None:
    assert find(options) is None


def test_other_experiments_stand_beside_it() -> None:
    other = b"\xfe\x06\xde\xad\xbe\xef"
    assert find(other + SynOption(3).encode()) == SynOption(3)
    assert find(b"\xfe\x0a\xe2\xd4\xc3\xd9\x11\x22\x33\x44") == SynOption()  # longer, and not ours


def test_saved_syns() -> None:
    for option in KERNEL_SYN, PLAIN + SynOption(1).encode():
        expected = find(option)
        assert find_in_packet(ipv4(option)) == expected
        assert find_in_packet(ipv4(option, b"\1" * 8)) == expected
        assert find_in_packet(ipv6(option)) == expected
        assert find_in_packet(ipv6(option, b"\x2b\0" + bytes(6) + b"\6\1" + bytes(14), 0)) == expected
        for at in range(len(ipv4(option))):
            assert find_in_packet(ipv4(option)[:at]) is None
        for at in range(len(ipv6(option))):
            assert find_in_packet(ipv6(option)[:at]) is None
    udp = ipv4(KERNEL_SYN)
    assert find_in_packet(udp[:9] + b"\x11" + udp[10:]) is None
    assert find_in_packet(ipv6(KERNEL_SYN, kind=17)) is None
    assert find_in_packet(ipv6(KERNEL_SYN, b"\0\xff" + bytes(6), 0)) is None


@given(st.binary(max_size=80), st.sampled_from([b"", b"\x45", b"\x60", KERNEL_SYN]))
def test_fuzz(data: bytes, before: bytes) -> None:
    for found in find(before + data), find_in_packet(before + data):
        assert found is None or 0 <= found.version <= 255
