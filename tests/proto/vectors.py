"""`python -m tests.proto.vectors NAME`: records the bytes of messages of each kind, as they are sent.

``vectors.json`` has those of versions that peers may still run. A version that is released adds its own.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from aiordma.proto import channel_frames, memory, resolve
from aiordma.proto import rpc as wire
from aiordma.proto.cdc import CdcMessage
from tests.proto import test_cdc, test_clc, test_failover, test_llc, test_resolve, test_rpc

FILE = Path(__file__).with_name("vectors.json")


def messages() -> dict[str, bytes]:
    """By format and number; the same fields in every version."""
    nonce, other = b"n" * 16, b"o" * 16
    where = test_resolve.GOOD
    found = {f"clc {number}": message.encode() for number, message in enumerate(test_clc.MESSAGES)}
    found |= {f"llc {number}": message.encode() for number, message in enumerate(test_llc.MESSAGES)}
    found |= {f"calls {name}": data for name, data in test_rpc.samples(wire).items()}
    cdc = CdcMessage()
    for at, name in enumerate(test_cdc.FIELDS, 1):
        setattr(cdc, name, at)
    found["cdc"] = cdc.encode()
    found["leave"] = test_failover.LEAVE.encode()
    found["resolver, question"] = resolve.Hello(nonce, where).encode()
    found["resolver, answer"] = resolve.Welcome(nonce, other, where).encode()
    found["memory, descriptor"] = memory.Descriptor(memory.Rights(5), 4096, 7, b"i" * 16, b"s" * 16).encode()
    found["memory, opened"] = memory.open_answer(3, 1 << 40, 4096, 9, memory.Rights(7))
    found["memory, span"] = memory.span(3, 1 << 33, 4096)
    found["memory, atomic"] = memory.atomic_request(5, 6)
    found["channel, greeting"] = channel_frames.greeting(2, 100_000)
    found["channel, message"] = channel_frames.message_header(70_000, 12)
    found["channel, end"] = channel_frames.CLOSE_FRAME
    return found


if __name__ == "__main__":
    recorded = json.loads(FILE.read_text()) if FILE.exists() else {}
    recorded[sys.argv[1]] = {name: data.hex() for name, data in messages().items()}
    FILE.write_text(json.dumps(recorded, indent=1) + "\n")
