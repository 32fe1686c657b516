"""Which commands may travel on a connection that many clients share.

Only commands known to leave no state on the connection are shared. All others, including commands unknown
to this file (modules, newer servers), get a connection of their own: a wrong guess then costs a
connection, never another client's data.
"""

from __future__ import annotations

import enum


class Kind(enum.Enum):
    """The effect of a command on its connection."""

    SHARE = "leaves no state behind, one reply"
    HOLD = "needs a connection of its own until it is over: transactions, blocking commands"
    END = "ends a transaction or a watch; harmless without one"
    ASK = "changes the connection permanently, unless the server refuses: identity, database"
    KEEP = "changes the connection permanently: subscriptions, replies off, unknown commands"
    HELLO = "chooses RESP2 or RESP3 and nothing else"
    QUIT = "says good-bye"


SHARED = frozenset(
    b"""
    APPEND BITCOUNT BITFIELD BITFIELD_RO BITOP BITPOS COPY DBSIZE DECR DECRBY DEL DUMP ECHO EVAL EVALSHA
    EVALSHA_RO EVAL_RO EXISTS EXPIRE EXPIREAT EXPIRETIME FCALL FCALL_RO FLUSHALL FLUSHDB GEOADD GEODIST
    GEOHASH GEOPOS GEORADIUS GEORADIUSBYMEMBER GEORADIUSBYMEMBER_RO GEORADIUS_RO GEOSEARCH GEOSEARCHSTORE
    GET GETBIT GETDEL GETEX GETRANGE GETSET HDEL HEXISTS HGET HGETALL HINCRBY HINCRBYFLOAT HKEYS HLEN HMGET
    HMSET HRANDFIELD HSCAN HSET HSETNX HSTRLEN HVALS INCR INCRBY INCRBYFLOAT INFO KEYS LASTSAVE LATENCY LCS
    LINDEX LINSERT LLEN LMOVE LMPOP LOLWUT LPOP LPOS LPUSH LPUSHX LRANGE LREM LSET LTRIM MEMORY MGET MOVE
    MSET MSETNX OBJECT PERSIST PEXPIRE PEXPIREAT PEXPIRETIME PFADD PFCOUNT PFMERGE PING PSETEX PTTL PUBLISH
    PUBSUB RANDOMKEY RENAME RENAMENX RESTORE ROLE RPOP RPOPLPUSH RPUSH RPUSHX SADD SCAN SCARD SDIFF
    SDIFFSTORE SET SETBIT SETEX SETNX SETRANGE SINTER SINTERCARD SINTERSTORE SISMEMBER SLOWLOG SMEMBERS
    SMISMEMBER SMOVE SORT SORT_RO SPOP SPUBLISH SRANDMEMBER SREM SSCAN STRLEN SUBSTR SUNION SUNIONSTORE
    SWAPDB TIME TOUCH TTL TYPE UNLINK XACK XADD XAUTOCLAIM XCLAIM XDEL XGROUP XINFO XLEN XPENDING XRANGE
    XREVRANGE XSETID XTRIM ZADD ZCARD ZCOUNT ZDIFF ZDIFFSTORE ZINCRBY ZINTER ZINTERCARD ZINTERSTORE
    ZLEXCOUNT ZMPOP ZMSCORE ZPOPMAX ZPOPMIN ZRANDMEMBER ZRANGE ZRANGEBYLEX ZRANGEBYSCORE ZRANGESTORE ZRANK
    ZREM ZREMRANGEBYLEX ZREMRANGEBYRANK ZREMRANGEBYSCORE ZREVRANGE ZREVRANGEBYLEX ZREVRANGEBYSCORE ZREVRANK
    ZSCAN ZSCORE ZUNION ZUNIONSTORE ACL BGREWRITEAOF BGSAVE CLUSTER COMMAND CONFIG
    """.split()
)

# Of SCRIPT and FUNCTION. KILL is not shared: it must bypass the script that it ends, which may be running on
# the shared connection.
SHARED_OPTIONS = frozenset(b"DELETE DUMP EXISTS FLUSH HELP LIST LOAD RESTORE SHOW STATS".split())

BLOCKING = frozenset(b"BLMOVE BLMPOP BLPOP BRPOP BRPOPLPUSH BZMPOP BZPOPMAX BZPOPMIN WAIT WAITAOF".split())

# The words that an option of XREAD and XREADGROUP takes, with its own.
_WORDS = {b"GROUP": 3, b"COUNT": 2, b"CLAIM": 2, b"NOACK": 1}


def classify(args: list[bytes]) -> Kind:
    """Return the effect of the command `args` on its connection."""
    name = args[0].upper()
    if name in SHARED:
        return Kind.SHARE
    option = args[1].upper() if len(args) > 1 else b""
    if name in (b"XREAD", b"XREADGROUP"):
        return Kind.HOLD if _blocks(args) else Kind.SHARE
    if name in BLOCKING or name in (b"MULTI", b"WATCH"):
        return Kind.HOLD
    if name in (b"EXEC", b"DISCARD", b"UNWATCH"):
        return Kind.END
    if name in (b"SCRIPT", b"FUNCTION") and option in SHARED_OPTIONS:
        return Kind.SHARE
    if name in (b"SCRIPT", b"FUNCTION") and option == b"KILL":
        return Kind.HOLD
    if name == b"CLIENT" and option == b"SETINFO":
        return Kind.SHARE  # the library's name and version, which redis-py sends first: no effect on replies
    if (name == b"CLIENT" and option != b"REPLY") or name in (b"SELECT", b"AUTH"):
        return Kind.ASK
    if name == b"HELLO" and len(args) == 2 and option in (b"2", b"3"):
        return Kind.HELLO
    if name == b"QUIT":
        return Kind.QUIT
    return Kind.KEEP


def is_shared_by_name(args: list[bytes]) -> bool:
    """True if the name alone makes the command shareable, so the result can be cached."""
    return args[0].upper() in SHARED


def _blocks(args: list[bytes]) -> bool:
    """True if XREAD or XREADGROUP may block: walk the options as Redis does, since a group, a consumer or a
    key may have the name of an option."""
    at = 1
    while at < len(args):
        option = args[at].upper()
        if option == b"STREAMS":
            return False
        if option not in _WORDS:
            return True  # BLOCK, or an option that is not known here
        at += _WORDS[option]
    return True


class Transaction:
    """State that the commands sent so far have left on a connection (MULTI, WATCH)."""

    def __init__(self) -> None:
        self.multi = False
        self.watching = False
        self.refused = False  # the server refused something: whether it agrees with us is not certain

    def answered(self, data: bytes) -> None:
        """Track the next bytes of the replies. An error that only looks like one costs a RESET."""
        if not self.refused:
            self.refused = data.startswith((b"-", b"\n-")) or b"\r\n-" in data

    def sent(self, args: list[bytes]) -> None:
        """Track one command. Wrong argument counts change nothing, as on the server."""
        name = args[0].upper()
        if name == b"MULTI" and len(args) == 1:
            self.multi = True
        elif name in (b"EXEC", b"DISCARD") and len(args) == 1:
            self.multi = self.watching = False
        elif name == b"WATCH":
            self.watching = True
        elif name == b"UNWATCH" and len(args) == 1 and not self.multi:
            self.watching = False

    @property
    def open(self) -> bool:
        """True while the connection holds state that must not affect other clients."""
        return self.multi or self.watching
