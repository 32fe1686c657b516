"""The parts of kv_rpc.py.

service.py   the service: the message types, and a class with marked methods
commands.py  the client: one function per command
"""
