"""The sender of a datagram: the 40 bytes before it, as devices fill them."""

from __future__ import annotations

import ipaddress
import struct

import pytest

from aiordma.datapath._ud import source_gid

SOURCE4 = ipaddress.ip_address("10.99.0.1").packed
MAPPED = bytes(10) + b"\xff\xff" + SOURCE4
SOURCE6 = ipaddress.ip_address("fd99::7").packed


def ipv4(check: int | None = None, first: int = 0x45) -> bytes:
    """An IPv4 header; ``check``: a checksum to use instead of the right one."""
    fields = [first, 0, 80, 7, 0x4000, 64, 17, 0, SOURCE4, SOURCE4]
    total = sum(struct.unpack(">10H", struct.pack(">BBHHHBBH4s4s", *fields)))
    fields[7] = ~((total & 0xFFFF) + (total >> 16)) & 0xFFFF if check is None else check
    return struct.pack(">BBHHHBBH4s4s", *fields)


IPV6 = struct.pack(">IHBB16s16s", 6 << 28, 60, 17, 64, SOURCE6, SOURCE6)


def test_ipv4() -> None:
    assert source_gid(bytes(20) + ipv4()) == MAPPED


def test_ipv4_that_nobody_has_summed_up() -> None:
    """rxe delivers its own loopback packets without a checksum."""
    assert source_gid(bytes(20) + ipv4(0)) == MAPPED


@pytest.mark.parametrize("before", [b"\x60" + bytes(19), b"\x6f" * 20, IPV6[:20]])
def test_the_bytes_before_ipv4_may_be_anything(before: bytes) -> None:
    assert source_gid(before + ipv4()) == MAPPED


def test_ipv6() -> None:
    assert source_gid(IPV6) == SOURCE6


def test_an_ipv6_address_that_looks_like_ipv4() -> None:
    """Its addresses lie where an IPv4 header would be; only the checksum differs."""
    likely = IPV6[:20] + ipv4(0xBEEF)
    assert source_gid(likely) == likely[8:24]


@pytest.mark.parametrize("header", [bytes(40), b"\xff" * 40, bytes(20) + ipv4(first=0x46)])
def test_neither(header: bytes) -> None:
    assert source_gid(header) is None


@pytest.mark.parametrize("size", [0, 39, 41])
def test_the_size_is_certain(size: int) -> None:
    with pytest.raises(ValueError, match=f"header of {size} bytes"):
        source_gid(bytes(size))
