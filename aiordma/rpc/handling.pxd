# Compiled, as dispatch.py is: each item of a stream passes here.
