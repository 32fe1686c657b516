"""What client and server say to each other on every connection, whatever carries it.

The client opens a connection and sends one request of `REQUEST.size` bytes:

* `ECHO size`: the server sends back every `size` bytes it gets, until the client closes;
* `SINK total`: the server reads `total` bytes, then answers with a `REPLY`: (its CPU time for that in ns, 0);
* `MEMORY`: the server answers with a `REPLY`: (anonymous, shared) resident bytes of its process; repeatable.
* `KEEP`: the server calls `keep_freed_memory()`, then answers with a `REPLY`.
"""

from __future__ import annotations

import ctypes
import gc
import struct
from pathlib import Path

ECHO, SINK, MEMORY, KEEP = 1, 2, 3, 4
REQUEST = struct.Struct("<QQ")
REPLY = struct.Struct("<QQ")

# What a bulk receiver asks for at a time; also what asyncio's own TCP transport reads at most.
BULK_BYTES = 256 * 1024


def keep_freed_memory() -> None:
    """Have glibc keep freed memory instead of giving it back to the kernel.

    A receiver that takes `bytes` of some 100 KiB after another otherwise pays page faults for them, or not,
    depending on how its heap happens to lie: up to five times the whole cost of receiving.
    """
    mallopt = ctypes.CDLL(None).mallopt
    m_trim_threshold, m_top_pad, m_mmap_threshold = -1, -2, -3
    mallopt(m_mmap_threshold, 32 << 20)
    mallopt(m_trim_threshold, 512 << 20)
    mallopt(m_top_pad, 16 << 20)


def resident_bytes() -> tuple[int, int]:
    """(anonymous, shared) resident memory of this process, after garbage has been given back.

    Rings on the software device are shared memory; everything else a stream needs is anonymous.
    """
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    fields = {}
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        key, _, value = line.partition(":")
        if key in {"RssAnon", "RssShmem"}:
            fields[key] = int(value.split()[0]) * 1024
    return fields["RssAnon"], fields["RssShmem"]
