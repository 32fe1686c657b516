"""The parts of redis_proxy.py.

    client.py    a Redis client of the front: routes its commands, gets its replies
    scan.py      where commands and replies end (compiled by Cython when asked to)
    resp.py      parses a command whose arguments matter
    commands.py  which commands may share a connection
    lane.py      a stream to the back: commands in batches, replies dispatched to their owners
    pool.py      shared lanes, reopened with backoff; lanes for one client at a time
    front.py     all of these together
    back.py      streams joined to connections to Redis
    hello.py     the first lines on a stream
    pipe.py      joins two transports, with back-pressure
    net.py       addresses and the aiordma calls

The streams carry plain RESP: Redis answers a connection's commands in order, so a lane needs no request
identifiers."""
