"""What applications gain: programs with their own work, on RDMA and on TCP, by turns.

counting.py   what a process has done: CPU time, switches, system calls, and the counts of its engines
proxy.py      the Redis proxy of examples/, loaded by redis-benchmark
counts.py     where the time goes: counts by request (`python -m benchmarks.apps.counts`)
"""

from __future__ import annotations

import sys
from pathlib import Path

# The programs measured are those of the examples, as users start them.
sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
