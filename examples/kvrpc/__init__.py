"""The parts of kv_rpc.py.

service.py   what is served: the types that travel, and a class whose marked methods are the service
commands.py  the client: one function for each of its commands
"""
