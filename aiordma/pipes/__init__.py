"""Non-blocking carriers of bytes and messages: rings over RDMA, TCP, TLS, and channels on a link.

Nothing in here waits: every call returns at once; what comes later arrives by callback (``contracts.py``).
"""
