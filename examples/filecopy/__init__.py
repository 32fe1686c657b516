"""The parts of file_copy.py.

    wire.py      the messages between sender and receiver
    store.py     files that arrive: names, partial files, their check, the final rename
    sender.py    one connection that offers files
    receiver.py  one connection that takes them

Each file goes like this: the sender offers name and size. The receiver answers with the digests of the
blocks that it already has of it, from a transfer that was cut off. The sender compares them with its own
and sends what follows the last block that is the same, then the digest of the whole file. Only if that
agrees does the file get its name.
"""
