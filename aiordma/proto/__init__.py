"""The protocols, without I/O: bytes and the time go in; messages, events and errors come out."""
