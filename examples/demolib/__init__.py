"""The parts of demo.py.

processes.py  programs that are started, listened to and ended
stack.py      redis-server, and proxies before it
checks.py     what redis-py must find behind the proxy
measure.py    redis-benchmark, by turns
"""
