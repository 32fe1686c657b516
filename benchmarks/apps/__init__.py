"""What applications gain: programs with their own work, on RDMA and on TCP, by turns.

counting.py   what a process has done: CPU time, switches, system calls, and the counts of its engines
proxy.py      the Redis proxy of examples/, loaded by redis-benchmark
counts.py     where the time goes: counts by request (`make count-apps`)
turns.py      two ways to do the same work, by turns
direct.py     a Python client of Redis without the front
valkey.py     a Python client of an unmodified valkey-server, by its own RDMA protocol
programs*.py  servers and clients that know nothing of aiordma, for `aiordma run`
suite.py      the rows of the table of applications (`make bench-apps`)
"""

from __future__ import annotations

import sys
from pathlib import Path

# The programs measured are those of the examples, as users start them.
sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
