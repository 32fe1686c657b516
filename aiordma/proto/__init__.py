"""The protocols, without I/O: cursors, CDC, CLC, LLC, windows, keepalive, failover, RPC.

Needs the standard library only. Time and bytes are arguments, results are values or events, so
everything runs in virtual time.
"""
