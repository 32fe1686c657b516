"""One end of a conversation in verbs, told by its standard input what to do: a JSON object a line.

The same program is the end on the kernel's rxe and, with the software device loaded in front of libibverbs,
the end on that. It has one device, one region of memory that the other end may do anything with, and any
number of queue pairs whose completions all go to one queue.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import random
import socket
import sys
import time
from pathlib import Path
from typing import Any

from pyverbs import enums as e
from pyverbs.addr import AH, GID, AHAttr, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.mr import MR, MW, MWBindInfo
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, RecvWR, SendWR

MEMORY = 8 << 20
QKEY = 0x11111111
RIGHTS = (
    e.IBV_ACCESS_LOCAL_WRITE
    | e.IBV_ACCESS_REMOTE_WRITE
    | e.IBV_ACCESS_REMOTE_READ
    | e.IBV_ACCESS_REMOTE_ATOMIC
    | e.IBV_ACCESS_MW_BIND
)
TYPES = {"rc": e.IBV_QPT_RC, "uc": e.IBV_QPT_UC, "ud": e.IBV_QPT_UD}
OPCODES = {
    "send": e.IBV_WR_SEND,
    "send_imm": e.IBV_WR_SEND_WITH_IMM,
    "send_inv": e.IBV_WR_SEND_WITH_INV,
    "write": e.IBV_WR_RDMA_WRITE,
    "write_imm": e.IBV_WR_RDMA_WRITE_WITH_IMM,
    "read": e.IBV_WR_RDMA_READ,
    "add": e.IBV_WR_ATOMIC_FETCH_AND_ADD,
    "swap": e.IBV_WR_ATOMIC_CMP_AND_SWP,
}
FLAGS = {
    "signaled": e.IBV_SEND_SIGNALED,
    "inline": e.IBV_SEND_INLINE,
    "solicited": e.IBV_SEND_SOLICITED,
    "fence": e.IBV_SEND_FENCE,
}
RESULTS = {
    e.IBV_WC_RECV: "recv",
    e.IBV_WC_RECV_RDMA_WITH_IMM: "recv_write_imm",
    e.IBV_WC_SEND: "send",
    e.IBV_WC_RDMA_WRITE: "write",
    e.IBV_WC_RDMA_READ: "read",
    e.IBV_WC_FETCH_ADD: "add",
    e.IBV_WC_COMP_SWAP: "swap",
    e.IBV_WC_BIND_MW: "bind",
}


def pattern(seed: int, length: int) -> bytes:
    """Bytes that anybody can make again and nobody gets by accident."""
    return random.Random(seed).randbytes(length)


class Peer:
    def __init__(self, device: str) -> None:
        self.device = device
        self.context = Context(name=device)
        self.pd = PD(self.context)
        self.cq = CQ(self.context, 4096)
        self.mr = MR(self.pd, MEMORY, RIGHTS)
        self.qps: dict[int, QP] = {}
        self.windows: list[MW] = []
        self.handles: list[AH] = []

    def hello(self) -> dict[str, Any]:
        port = self.context.query_port(1)
        return {"addr": self.mr.buf, "rkey": self.mr.rkey, "mtu": port.active_mtu}

    def _gid_index(self, gid: str) -> int:
        wanted = str(GID(gid))
        for index in range(32):
            if str(self.context.query_gid(1, index)) == wanted:
                return index
        raise LookupError(f"{self.device} has no GID {gid}")

    def _address(self, gid: str, to: str, traffic_class: int = 0) -> AHAttr:
        route = GlobalRoute(
            dgid=GID(to), sgid_index=self._gid_index(gid), hop_limit=64, traffic_class=traffic_class
        )
        return AHAttr(gr=route, is_global=1, port_num=1)

    # ---- queue pairs ---------------------------------------------------------------------------------------

    def make(self, kind: str = "rc", inline: int = 64) -> int:
        cap = QPCap(max_send_wr=256, max_recv_wr=512, max_send_sge=4, max_recv_sge=4, max_inline_data=inline)
        qp = QP(self.pd, QPInitAttr(qp_type=TYPES[kind], scq=self.cq, rcq=self.cq, cap=cap))
        if kind == "ud":
            attr = QPAttr()
            attr.port_num = 1
            attr.qkey = QKEY
            attr.sq_psn = 0
            qp.to_init(attr)
            qp.to_rtr(attr)
            qp.to_rts(attr)
        self.qps[qp.qp_num] = qp
        return int(qp.qp_num)

    def connect(
        self,
        qpn: int,
        *,
        gid: str,
        to: str,
        to_qpn: int,
        mtu: int,
        sq_psn: int,
        rq_psn: int,
        timeout: int = 14,
        retry: int = 7,
        rnr_retry: int = 7,
        rnr_timer: int = 12,
        fetches: int = 4,
        traffic_class: int = 0,
    ) -> int:
        """Bring it to RTS. Returns the path MTU (its number) that it has then."""
        qp = self.qps[qpn]
        attr = QPAttr()
        attr.port_num = 1
        attr.qp_access_flags = RIGHTS & ~e.IBV_ACCESS_MW_BIND
        qp.to_init(attr)
        attr = QPAttr()
        attr.path_mtu = mtu
        attr.dest_qp_num = to_qpn
        attr.rq_psn = rq_psn
        attr.max_dest_rd_atomic = fetches
        attr.min_rnr_timer = rnr_timer
        attr.ah_attr = self._address(gid, to, traffic_class)
        qp.to_rtr(attr)
        attr.sq_psn = sq_psn
        attr.timeout = timeout
        attr.retry_cnt = retry
        attr.rnr_retry = rnr_retry
        attr.max_rd_atomic = fetches
        qp.to_rts(attr)
        return int(qp.query(e.IBV_QP_PATH_MTU)[0].path_mtu)

    def state(self, qpn: int) -> int:
        return int(self.qps[qpn].query(e.IBV_QP_STATE)[0].qp_state)

    def close(self, qpn: int) -> None:
        for window in self.windows:  # rxe waits a minute for windows that are bound
            window.close()
        self.windows.clear()
        self.qps.pop(qpn).close()
        for handle in self.handles:
            handle.close()
        self.handles.clear()
        while self.cq.poll(64)[0]:
            pass

    # ---- work ----------------------------------------------------------------------------------------------

    def receive(self, qpn: int, wr_id: int, offset: int = 0, length: int = 4096, count: int = 1) -> None:
        """Post receives, the next one's memory behind this one's."""
        for n in range(count):
            sge = SGE(self.mr.buf + offset + n * length, length, self.mr.lkey)
            self.qps[qpn].post_recv(RecvWR(wr_id=wr_id + n, sg=[sge], num_sge=1))

    def post(
        self,
        qpn: int,
        what: str,
        *,
        wr_id: int = 0,
        pieces: list[tuple[int, int]] | None = None,
        flags: list[str] | None = None,
        imm: int = 0,
        raddr: int = 0,
        rkey: int = 0,
        compare_add: int = 0,
        swap: int = 0,
        to: list[Any] | None = None,
    ) -> None:
        """``pieces``: offsets and lengths of local memory; ``to``: own GID, GID and QPN for a datagram."""
        # pyverbs wants one even where nothing is sent.
        sges = [SGE(self.mr.buf + at, length, self.mr.lkey) for at, length in pieces or [(0, 0)]]
        bits = 0
        for flag in ["signaled"] if flags is None else flags:
            bits |= FLAGS[flag]
        # pyverbs hands on the integer as it lies in memory, and verbs want it in network order.
        imm = imm if what == "send_inv" else socket.htonl(imm)
        wr = SendWR(
            wr_id=wr_id, sg=sges, num_sge=len(sges), opcode=OPCODES[what], send_flags=bits, imm_data=imm
        )
        if what in ("write", "write_imm", "read"):
            wr.set_wr_rdma(rkey, raddr)
        elif what in ("add", "swap"):
            wr.set_wr_atomic(rkey, raddr, compare_add, swap)
        if to is not None:
            handle = AH(self.pd, attr=self._address(to[0], to[1]))
            self.handles.append(handle)
            wr.set_wr_ud(handle, to[2], QKEY)
        self.qps[qpn].post_send(wr)

    def write_many(self, qpn: int, count: int, length: int, raddr: int, rkey: int, depth: int = 8) -> int:
        """That many WRITEs of the same memory, some under way at a time. Returns how many were right."""
        posted = right = done = 0
        while done < count:
            while posted < count and posted - done < depth:
                self.post(qpn, "write", pieces=[(0, length)], raddr=raddr, rkey=rkey)
                posted += 1
            found = self.poll(1)
            done += max(len(found), 1)
            right += sum(wc["status"] == 0 for wc in found)
        return right

    def write_for(
        self, qpns: list[int], seconds: float, length: int, raddr: int, rkey: int, depth: int = 7
    ) -> list[tuple[float, int]]:
        """WRITEs on all queue pairs until the time is over. Returns the end of each: when, and whose."""
        left, found = dict.fromkeys(qpns, depth), []
        end = time.monotonic() + seconds
        while time.monotonic() < end or any(free < depth for free in left.values()):
            for qpn in qpns:
                while left[qpn] and time.monotonic() < end:
                    self.post(qpn, "write", pieces=[(0, length)], raddr=raddr, rkey=rkey)
                    left[qpn] -= 1
            for wc in self.poll(1):
                assert wc["status"] == 0, wc
                left[wc["qpn"]] += 1
                found.append((time.monotonic(), qpns.index(wc["qpn"])))
        return found

    def window(self, qpn: int, offset: int, length: int) -> int:
        """A memory window of type 2 over part of the memory. Returns its rkey, when it is bound."""
        window = MW(self.pd, e.IBV_MW_TYPE_2)
        self.windows.append(window)
        wr = SendWR(wr_id=0, sg=None, num_sge=0, opcode=e.IBV_WR_BIND_MW, send_flags=e.IBV_SEND_SIGNALED)
        info = MWBindInfo(self.mr, self.mr.buf + offset, length, e.IBV_ACCESS_REMOTE_WRITE)
        rkey = (window.rkey & ~0xFF) | ((window.rkey + 1) & 0xFF)  # what binding makes of it
        wr.set_bind_wr(window, info)
        self.qps[qpn].post_send(wr)
        done = self.poll(1)
        assert done[0]["status"] == 0, done
        return int(rkey)

    def poll(self, count: int, seconds: float = 30) -> list[dict[str, Any]]:
        """That many completions, or those that came until the time was over."""
        found: list[dict[str, Any]] = []
        end = time.monotonic() + seconds
        while len(found) < count:
            _, completions = self.cq.poll(64)
            for wc in completions:
                opcode = RESULTS.get(wc.opcode, wc.opcode) if wc.status == 0 else None
                has_imm = opcode in ("recv", "recv_write_imm") and wc.wc_flags & e.IBV_WC_WITH_IMM
                found.append(
                    {
                        "wr_id": wc.wr_id,
                        "status": wc.status,
                        "opcode": opcode,
                        "length": wc.byte_len,
                        "qpn": wc.qp_num,
                        "src": wc.src_qp,
                        "imm": socket.ntohl(wc.imm_data) if has_imm else None,
                        "invalidated": bool(wc.wc_flags & e.IBV_WC_WITH_INV),
                    }
                )
            if not completions:
                if time.monotonic() > end:
                    break
                time.sleep(0.0002)
        return found

    # ---- memory --------------------------------------------------------------------------------------------

    def fill(self, offset: int, length: int, seed: int) -> None:
        data = pattern(seed, length)
        self.mr.write(data, length, offset)

    def clear(self, offset: int, length: int) -> None:
        self.mr.write(bytes(length), length, offset)

    def digest(self, offset: int, length: int) -> str:
        return hashlib.sha256(self.mr.read(length, offset)).hexdigest()

    def number(self, offset: int, value: int | None = None) -> int:
        """Eight bytes as the machine's integer, set before when a value is given."""
        if value is not None:
            self.mr.write(value.to_bytes(8, sys.byteorder), 8, offset)
        return int.from_bytes(self.mr.read(8, offset), sys.byteorder)

    # ---- the software device alone -------------------------------------------------------------------------

    def faults(self, spec: str) -> None:
        """What goes wrong on purpose from here on; an empty one: nothing."""
        assert ctypes.CDLL(None).softdev_faults(spec.encode()) == 0, spec

    # ---- counters ------------------------------------------------------------------------------------------

    def counters(self) -> dict[str, int]:
        if self.device.startswith("rxe"):
            directory = Path(f"/sys/class/infiniband/{self.device}/ports/1/hw_counters")
            return {
                path.name: int(path.read_text()) for path in directory.iterdir() if path.name != "lifespan"
            }
        count = ctypes.CDLL(None).softdev_wire_count
        count.restype = ctypes.c_uint64
        names = ("sent", "runs", "received", "send_failed", "malformed", "bad_icrc", "no_qp", "wrong_peer")
        return {
            name: count(name.encode()) for name in (*names, "marked", "cnps_sent", "cnps_received", "paced")
        }


def main() -> None:
    peer = Peer(sys.argv[1])
    print(json.dumps(peer.hello()), flush=True)
    for line in sys.stdin:
        call = json.loads(line)
        try:
            result = getattr(peer, call.pop("do"))(*call.pop("args", ()), **call)
        except Exception as failure:
            print(json.dumps({"error": f"{type(failure).__name__}: {failure}"}), flush=True)
        else:
            print(json.dumps({"result": result}), flush=True)


if __name__ == "__main__":
    main()
