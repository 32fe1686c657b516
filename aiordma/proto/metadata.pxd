# Compiled, as rpc.py is: a call with metadata passes here.
