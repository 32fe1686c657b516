"""Measuring: the loops, the workloads, the server that they run against, and what ``aiordma ping``
and ``aiordma perf`` report of them. The benchmarks use the same ones.
"""
