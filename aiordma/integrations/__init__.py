"""Other libraries on aiordma: for programs that choose it in their code, connection by connection.

Each module needs the library of its name, an extra of aiordma (``pip install aiordma[httpx]``). Importing
this package imports none of them.
"""
