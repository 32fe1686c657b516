"""The program in the kernel that puts SMC's TCP option into SYNs and SYN-ACKs of ordinary sockets.

A socket takes part when its cookie is in a map before ``connect()`` or ``listen()``: :meth:`SynOptions.want`.
A client's entry then tells whether its SYN had the option, and whether the SYN-ACK had it, and whose:
:meth:`SynOptions.answer`. A
listener's SYN-ACKs have it if the SYN had it; whether it had, ``TCP_SAVED_SYN`` shows.

The program is of the kind sockops, assembled here from 8-byte instructions of BPF. To load it and attach it
to a cgroup (version 2) takes ``CAP_BPF`` and ``CAP_NET_ADMIN``, and Linux 5.10; to use it takes the map's
descriptor and no privilege. Who can write the map can have the option set for sockets of others.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import os
import platform
import socket
import struct
from typing import TYPE_CHECKING, Any, NamedTuple

from ..proto.syn_option import SynOption, find

if TYPE_CHECKING:
    from collections.abc import Callable

    _Memory = ctypes.Array[ctypes.c_char]

_NUMBERS = {"x86_64": 321, "aarch64": 280}
_MAP_CREATE, _MAP_LOOKUP, _MAP_UPDATE, _MAP_DELETE, _PROG_LOAD, _LINK_CREATE = 0, 1, 2, 3, 5, 28
_PIN, _GET = 6, 7
_MAP_LOOKUP_AND_DELETE = 21
#: What Linux before 5.14 says of that: it is for queues only there. The second has no name outside of it.
_NOT_FOR_HASHES = {errno.EINVAL, 524}
# The map drops what was not used for longest: entries of connections that never came about.
_LRU_HASH, _SOCK_OPS, _CGROUP_SOCK_OPS = 9, 13, 3
_SO_COOKIE = 57
_MAP_ENTRIES = 65536
#: The verifier gives up with EAGAIN when a signal is pending, which says nothing of the program. libbpf tries
#: as often.
_LOAD_ATTEMPTS = 5
#: In a map's entry: a socket takes part; its SYN-ACK had the option, whose own bytes are in the upper half;
#: the program has seen the socket, whose SYN has the option.
_WANTED, _ANSWERED, _ASKED = 1, 2, 4
#: aiordma's part of the option that this version sends.
_OWN_VERSION = 1

# struct bpf_sock_ops: offsets of op, args[0], is_fullsock, bpf_sock_ops_cb_flags, skb_tcp_flags.
_OP, _ARG_0, _IS_FULL, _CALLBACKS, _TCP_FLAGS = 0, 4, 72, 84, 212
_TCP_CONNECT, _ACTIVE_ESTABLISHED, _PASSIVE_ESTABLISHED, _TCP_LISTEN = 3, 4, 5, 11
_OPTION_LENGTH, _WRITE_OPTION = 14, 15
_WRITES_OPTIONS, _SYN_COOKIE, _OF_SYN = 0x40, 2, 1
_SYN, _SYN_AND_ACK = 0x02, 0x12
_LOOKUP, _UPDATE, _GET_COOKIE, _SET_CALLBACKS, _LOAD, _STORE, _RESERVE = 1, 2, 46, 59, 142, 143, 144
# On the stack: key and value of the map, and an option.
_KEY, _VALUE, _OPTION = -8, -12, -32
_OPTION_ROOM = 16
_CONTEXT, _EVENT, _FRAME = 6, 7, 10  # registers that keep their value


class _Assembler:
    """Instructions of BPF, with jumps to labels."""

    def __init__(self) -> None:
        self._code: list[tuple[int, int, int, int | str, int]] = []
        self._labels: dict[str, int] = {}

    def label(self, name: str) -> None:
        self._labels[name] = len(self._code)

    def add(self, code: int, dst: int = 0, src: int = 0, off: int | str = 0, value: int = 0) -> None:
        self._code.append((code, dst, src, off, value))

    def move(self, dst: int, src: int) -> None:
        self.add(0xBF, dst, src)

    def set(self, dst: int, value: int) -> None:
        self.add(0xB7, dst, value=value)

    def load(self, dst: int, src: int, off: int) -> None:
        self.add(0x61, dst, src, off)

    def store(self, off: int, value: bytes) -> None:
        """Four bytes each to the stack."""
        for at in range(0, len(value), 4):
            self.add(0x62, _FRAME, 0, off + at, int.from_bytes(value[at : at + 4], "little"))

    def jump(self, to: str) -> None:
        self.add(0x05, off=to)

    def jump_if(self, dst: int, value: int, to: str) -> None:
        self.add(0x15, dst, 0, to, value)

    def address(self, dst: int, off: int) -> None:
        """Of something on the stack."""
        self.move(dst, _FRAME)
        self.add(0x07, dst, value=off)

    def map(self, dst: int, fd: int) -> None:
        self.add(0x18, dst, 1, 0, fd)
        self.add(0)

    def call(self, helper: int) -> None:
        self.add(0x85, value=helper)

    def code(self) -> bytes:
        out = b""
        for at, (code, dst, src, off, value) in enumerate(self._code):
            distance = self._labels[off] - at - 1 if isinstance(off, str) else off
            signed = value - (1 << 32) if value >= 1 << 31 else value
            out += struct.pack("<BBhi", code, src << 4 | dst, distance, signed)
        return out


def assemble(map_fd: int) -> bytes:
    """The program, for the map of this descriptor."""
    a = _Assembler()
    a.move(_CONTEXT, 1)
    a.load(_EVENT, _CONTEXT, _OP)
    for event, to in (
        (_TCP_CONNECT, "opt in"),
        (_TCP_LISTEN, "opt in"),
        (_ACTIVE_ESTABLISHED, "established"),
        (_PASSIVE_ESTABLISHED, "opt out"),
        (_OPTION_LENGTH, "header"),
        (_WRITE_OPTION, "header"),
    ):
        a.jump_if(_EVENT, event, to)
    a.jump("out")
    _opt_in(a, map_fd)
    _established(a, map_fd)
    _header(a)
    a.label("out")
    a.set(0, 1)
    a.add(0x95)
    return a.code()


def _key(a: _Assembler) -> None:
    a.move(1, _CONTEXT)
    a.call(_GET_COOKIE)
    a.add(0x7B, _FRAME, 0, _KEY)


def _look_up(a: _Assembler, map_fd: int) -> None:
    a.map(1, map_fd)
    a.address(2, _KEY)
    a.call(_LOOKUP)


def _set_callbacks(a: _Assembler, on: bool) -> None:
    a.load(2, _CONTEXT, _CALLBACKS)
    if on:
        a.add(0x47, 2, value=_WRITES_OPTIONS)
    else:
        a.add(0x57, 2, value=~_WRITES_OPTIONS & 0xFFFFFFFF)
    a.move(1, _CONTEXT)
    a.call(_SET_CALLBACKS)


def _find(a: _Assembler, where: int) -> None:
    """Load the option of the packet at hand (0) or of the SYN that it answers: the result is not negative."""
    a.store(_OPTION, SynOption().encode().ljust(_OPTION_ROOM, b"\0"))
    a.move(1, _CONTEXT)
    a.address(2, _OPTION)
    a.set(3, _OPTION_ROOM)
    a.set(4, where)
    a.call(_LOAD)


def _opt_in(a: _Assembler, map_fd: int) -> None:
    a.label("opt in")
    _key(a)
    _look_up(a, map_fd)
    a.jump_if(0, 0, "out")
    a.add(0x62, 0, 0, 0, _ASKED)  # the entry itself
    _set_callbacks(a, True)
    a.jump("out")


def _established(a: _Assembler, map_fd: int) -> None:
    """A client's SYN-ACK is here. Whether the socket takes part says this program's own map: the flag for
    callbacks is the socket's, and another program of this kind, say of a container's cgroup, has perhaps
    cleared it already."""
    a.label("established")
    _key(a)
    _look_up(a, map_fd)
    a.jump_if(0, 0, "out")
    _find(a, 0)
    a.add(0xC5, 0, 0, "opt out")  # less than 0
    a.add(0x69, 1, _FRAME, _OPTION + 6)  # the two bytes of aiordma's own, 0 without them
    a.add(0x67, 1, value=16)
    a.add(0x47, 1, value=_ANSWERED)
    a.add(0x63, _FRAME, 1, _VALUE)
    a.map(1, map_fd)
    a.address(2, _KEY)
    a.address(3, _VALUE)
    a.set(4, 0)
    a.call(_UPDATE)
    a.label("opt out")
    _set_callbacks(a, False)
    a.jump("out")


def _header(a: _Assembler) -> None:
    """First the kernel asks how long the option is, then for the option."""
    a.label("header")
    a.load(1, _CONTEXT, _IS_FULL)
    a.jump_if(1, 0, "request")
    a.load(1, _CONTEXT, _TCP_FLAGS)
    a.add(0x57, 1, value=_SYN_AND_ACK)
    a.add(0x55, 1, 0, "out", _SYN)  # another one
    a.store(_OPTION, SynOption(_OWN_VERSION).encode())
    a.jump("either")
    a.label("request")  # a SYN-ACK: if the SYN had the option, and a SYN cookie does not forget it
    a.load(1, _CONTEXT, _ARG_0)
    a.jump_if(1, _SYN_COOKIE, "out")
    _find(a, _OF_SYN)
    a.add(0xC5, 0, 0, "out")
    a.store(_OPTION, SynOption(_OWN_VERSION, in_answer=True).encode())
    a.label("either")
    a.move(1, _CONTEXT)
    a.jump_if(_EVENT, _WRITE_OPTION, "write")
    length = len(SynOption(_OWN_VERSION).encode())
    a.set(2, length)
    a.set(3, 0)
    a.call(_RESERVE)
    a.jump("out")
    a.label("write")
    a.address(2, _OPTION)
    a.set(3, length)
    a.set(4, 0)
    a.call(_STORE)


@functools.cache
def _system_call() -> Callable[[int, _Memory, int], int]:
    """bpf(), of a command, its attributes and their size. Made once: it takes longer than a call. Converting
    arguments to declared types would take longer than the kernel does, and so would another thread, to which
    the interpreter might be handed meanwhile.

    :raises OSError: this processor's number of it is not known.
    """
    number = _NUMBERS.get(platform.machine())
    if number is None:
        raise OSError(f"the system call bpf() has no known number on {platform.machine()}")
    call: Any = ctypes.PyDLL(None, use_errno=True).syscall
    call.restype = ctypes.c_long
    return functools.partial(call, ctypes.c_long(number))


def _bpf(command: int, attributes: bytes) -> int:
    room = ctypes.create_string_buffer(attributes.ljust(128, b"\0"), 128)
    return _checked(command, _system_call()(command, room, 128))


def _checked(command: int, result: int) -> int:
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"bpf({command}): {os.strerror(error)}")
    return result


def _load_program(attributes: bytes) -> int:
    for _ in range(_LOAD_ATTEMPTS - 1):
        with contextlib.suppress(BlockingIOError):
            return _bpf(_PROG_LOAD, attributes)
    return _bpf(_PROG_LOAD, attributes)


def pin(fd: int, path: str) -> None:
    """Give an object of BPF a name below a mounted bpffs. :raises OSError:"""
    _named(_PIN, path, fd)


def open_pinned(path: str) -> int:
    """A descriptor of the object with this name. :raises OSError:"""
    return _named(_GET, path, 0)


def _named(command: int, path: str, fd: int) -> int:
    name = ctypes.create_string_buffer(os.fsencode(path))
    return _bpf(command, struct.pack("<QII", ctypes.addressof(name), fd, 0))


#: Attributes of what is done to an entry of the map, and behind them its key and its value.
_ENTRY = struct.Struct("<I4xQQQ8sI")
_VALUE_PLACE_AT, _KEY_AT, _VALUE_AT = 16, 32, 40
_PLACE, _NUMBER = struct.Struct("<Q"), struct.Struct("<I")

SynEntry = ctypes.c_char * _ENTRY.size
"""The entry of a socket that takes part: in one piece of memory, since it is a part of each connect, all that
the kernel is to be told of it, and what the kernel says of it."""


class SynAnswer(NamedTuple):
    """What came of a question in a SYN."""

    was_sent: bool
    """The program has seen it. Otherwise this process is outside of its cgroup, or it is gone, or older than
    this bit."""
    option: SynOption | None
    """What the SYN-ACK has."""


_UNANSWERED, _UNSEEN = SynAnswer(True, None), SynAnswer(False, None)


class SynOptions:
    """The map: which sockets take part, and what their SYN-ACKs said. Any process that has its descriptor may
    use it.

    :param map_fd: the descriptor, which this object does not close.
    """

    def __init__(self, map_fd: int) -> None:
        self.map_fd = map_fd

    def want(self, sock: socket.socket) -> _Memory:
        """The socket takes part, from its ``connect()`` or ``listen()`` on.

        :returns: its entry (``SynEntry``), for the other methods.
        :raises OSError: the map is full, or the descriptor is that of something else.
        """
        entry = SynEntry()
        at = ctypes.addressof(entry)
        cookie = sock.getsockopt(socket.SOL_SOCKET, _SO_COOKIE, 8)
        _ENTRY.pack_into(entry, 0, self.map_fd, at + _KEY_AT, at + _VALUE_AT, 0, cookie, _WANTED)
        _asked(_MAP_UPDATE, entry)
        return entry

    def answer(self, entry: _Memory) -> SynAnswer:
        """What a connected client's SYN-ACK says. To be asked once: the socket's entry is gone then.

        :raises OSError: the kernel has no such entry.
        """
        try:
            _asked(_MAP_LOOKUP_AND_DELETE, entry)
        except OSError as error:
            if error.errno not in _NOT_FOR_HASHES:
                raise
            _asked(_MAP_LOOKUP, entry)
            self.forget(entry)
        (value,) = _NUMBER.unpack_from(entry, _VALUE_AT)
        if value == _ASKED:
            return _UNANSWERED
        if value & 0xFFFF != _ANSWERED:
            return _UNSEEN
        own = (value >> 16).to_bytes(2, "little")
        return SynAnswer(True, find(bytes((254, 8)) + SynOption().encode()[2:] + own))

    def forget(self, entry: _Memory) -> None:
        """The socket's entry is not needed any more: a listener's from its ``listen()`` on.

        :raises OSError: the kernel has none.
        """
        _PLACE.pack_into(entry, _VALUE_PLACE_AT, 0)  # the kernel refuses to delete what has a value
        _asked(_MAP_DELETE, entry)


def _asked(command: int, entry: _Memory) -> None:
    """Of an entry. :raises OSError:"""
    if _system_call()(command, entry, _KEY_AT) < 0:
        _checked(command, -1)


class SynProgram:
    """The program, attached to a cgroup until :meth:`close`, or the end of this process.

    :param cgroup: a directory of cgroup version 2. The program sees sockets of the processes below it.
    :raises OSError: no privilege, or an older kernel.
    """

    def __init__(self, cgroup: str) -> None:
        self._fds: list[int] = []
        try:
            self._load(cgroup)
        except BaseException:
            self.close()
            raise
        self.options = SynOptions(self._fds[0])

    def _load(self, cgroup: str) -> None:
        self._fds.append(_bpf(_MAP_CREATE, struct.pack("<IIII", _LRU_HASH, 8, 4, _MAP_ENTRIES)))
        code = assemble(self._fds[0])
        text = ctypes.create_string_buffer(code, len(code))
        license_name = ctypes.create_string_buffer(b"Apache-2.0")
        places = ctypes.addressof(text), ctypes.addressof(license_name)
        attributes = struct.pack("<IIQQ", _SOCK_OPS, len(code) // 8, *places)
        self._fds.append(_load_program(attributes))
        directory = os.open(cgroup, os.O_RDONLY | os.O_CLOEXEC)
        try:
            link = struct.pack("<IIII", self._fds[1], directory, _CGROUP_SOCK_OPS, 0)
            self._fds.append(_bpf(_LINK_CREATE, link))
        finally:
            os.close(directory)

    def keep(self, map_path: str, link_path: str) -> None:
        """Let map and attachment outlive this object and process, by names below a mounted bpffs.

        :raises OSError: it is none, or a name is taken.
        """
        pin(self._fds[0], map_path)
        pin(self._fds[2], link_path)

    def close(self) -> None:
        """Take the program out of the kernel, unless it is kept. Idempotent."""
        while self._fds:
            os.close(self._fds.pop())
