"""The parts of file_copy.py.

    wire.py      the messages between sender and receiver
    store.py     received files: names, partial files, verification, the final rename
    sender.py    one connection that offers files
    receiver.py  one connection that receives them

For each file the sender offers name and size. The receiver answers with the digests of the blocks that it
already has from an interrupted transfer. The sender compares them with its own, sends everything after the
last equal block, then the digest of the whole file. The file gets its name only if that digest matches.
"""
