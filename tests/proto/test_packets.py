"""Messages as packets: what Wireshark makes of them, and that no key is in them."""

from __future__ import annotations

import struct
import subprocess
from typing import TYPE_CHECKING

from aiordma.proto import llc, llcown, packets
from aiordma.proto.packets import Packet, ip_bytes, pcapng, roce_packet, tcp_packet, without_keys

from .test_llc import KERNEL_ADD_LINK

if TYPE_CHECKING:
    from pathlib import Path

ONE, OTHER = ip_bytes("192.0.2.1"), ip_bytes("192.0.2.2")
SIX = ip_bytes("[2001:db8::1]")


def read(path: Path, *fields: str) -> list[list[str]]:
    """What tshark finds in each packet."""
    options = [option for field in fields for option in ("-e", field)]
    command = ["tshark", "-r", str(path), "-o", "ip.check_checksum:TRUE", "-T", "fields", *options]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    return [line.split("\t") for line in done.stdout.splitlines()]


def test_wireshark_reads_them(tmp_path: Path) -> None:
    message = llc.TestLink(user_data=b"0123456789abcdef").encode()
    made = [
        roce_packet((ONE, OTHER), opcode=packets.SEND_ONLY, qp=0x1234, psn=7, data=message, size=44, imm=5),
        roce_packet((OTHER, ONE), opcode=packets.SEND_ONLY, qp=0x99, psn=8, data=message, size=44),
        # A WRITE of which nothing but the header is known.
        roce_packet(
            (ONE, OTHER), opcode=packets.WRITE_ONLY, qp=1, psn=9, data=b"", size=1000, remote_addr=1 << 40
        ),
        roce_packet((SIX, SIX), opcode=packets.READ_REQUEST, qp=1, psn=10, data=b"", size=70000),
        roce_packet((ONE, SIX), opcode=packets.WRITE_ONLY, qp=2, psn=11, data=b"abc", size=3),
    ]
    segment = tcp_packet((ONE, OTHER), (50000, 7000), (100, 200), b"payload")
    rows = [
        Packet(1_700_000_000_000_000_000 + n, n % 2 == 0, size, data) for n, (data, size) in enumerate(made)
    ]
    rows.append(Packet(1_700_000_000_000_000_005, True, len(segment), segment))
    path = tmp_path / "it.pcapng"
    path.write_bytes(pcapng(rows))
    fields = ("ip.src", "infiniband.bth.opcode", "infiniband.bth.destqp", "infiniband.bth.psn", "frame.len")
    found = read(
        path,
        *fields,
        "infiniband.reth.dmalen",
        "tcp.seq_raw",
        "ip.checksum.status",
        "frame.time_epoch",
        "frame.comment",
        "_ws.malformed",
    )
    assert [row[1] for row in found] == ["5", "4", "10", "12", "10", ""]
    assert [row[0] for row in found] == ["192.0.2.1", "192.0.2.2", "192.0.2.1", "", "", "192.0.2.1"]
    assert [int(row[2], 16) for row in found[:5]] == [0x1234, 0x99, 1, 1, 2]
    assert [row[3] for row in found[:5]] == ["7", "8", "9", "10", "11"]
    assert [row[5] for row in found[2:5]] == ["1000", "70000", "3"]
    assert int(found[2][4]) == 20 + 8 + 12 + 16 + 4
    assert [row[9] for row in found] == ["", "", "1000 bytes of payload are left out", "", "", ""]
    assert {row[10] for row in found} == {""}  # nothing is malformed
    assert found[5][6] == "100"
    assert {row[7] for row in found} <= {"1", ""}  # good, or IPv6
    assert [row[8][-9:] for row in found] == [f"00000000{n}" for n in range(6)]


def test_keys_are_blanked_and_nothing_else() -> None:
    ticket = llcown.Ticket(number=1, service=2, token=3, rkey=0xDEADBEEF, ring_addr=1 << 33, ring_bytes=16384)
    shown = without_keys(ticket.encode())
    assert b"\xde\xad\xbe\xef" in ticket.encode()
    assert llc.decode(shown) == llcown.Ticket(
        number=1, service=2, token=3, rkey=0, ring_addr=1 << 33, ring_bytes=16384
    )
    for version_2 in (False, True):
        for message in (
            llc.ConfirmRKey(tokens=tuple(llc.RToken(i, 0xDEADBEEF, 7) for i in range(3))),
            llc.DeleteRKey(rkeys=(0xDEADBEEF,) * 8),
            llc.DeleteRKey(rkeys=(0xDEADBEEF,) * 8, response=True),
        ):
            data = llc.in_version_2(message.encode()) if version_2 else message.encode()
            assert data.count(b"\xde\xad\xbe\xef") > 2
            shown = without_keys(data)
            assert {data[at] for at in range(44) if shown[at] != data[at]} <= {0xDE, 0xAD, 0xBE, 0xEF}
            assert b"\xde\xad\xbe\xef" not in shown
            assert len(shown) == len(data)
    many = llc.in_version_2(llc.DeleteRKey(rkeys=(0xDEADBEEF,) * 8).encode()) + b"\xde\xad\xbe\xef" * 20
    assert b"\xde" not in without_keys(many)
    added = llc.decode(without_keys(KERNEL_ADD_LINK))
    kernels = llc.decode(KERNEL_ADD_LINK)
    assert isinstance(added, llc.AddLink)
    assert isinstance(kernels, llc.AddLink)
    assert added == kernels.changed(psn=0, keys=(llc.NewKey(0, 0, kernels.keys[0].new_addr),))
    for other in (llc.TestLink(user_data=bytes(range(16))), llc.AnnounceAck()):
        assert without_keys(other.encode()) == other.encode()
    # An Accept (type 2) of SMC: rkey at 41, PSN at 61 (RFC 7609, appendix A.2.2, and Linux smc_clc.h).
    accept = b"\xe2\xd4\xc3\xd9\x02" + struct.pack(">HB", 80, 0x20) + bytes(range(8, 80))
    shown = without_keys(accept)
    changed = {at for at in range(80) if shown[at] != accept[at]}
    assert changed == {41, 42, 43, 44, 61, 62, 63}
    assert without_keys(accept[:43]) == accept[:41] + b"\0\0"
    assert without_keys(b"") == b""


def test_addresses_that_are_none() -> None:
    assert ip_bytes("a name") == bytes(16)
    assert ip_bytes("fe80::1%2") == ip_bytes("fe80::1")
