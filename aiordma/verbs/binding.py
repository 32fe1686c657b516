"""The contract of a verbs binding: the classes and functions through which aiordma makes verbs objects.

There are two of them, pyverbs and aiordma's own (:mod:`aiordma.verbs.own`), whose classes are called and
behave as pyverbs' do. Objects of one cannot be handed to the other.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class Binding(NamedTuple):
    """The classes of a binding. pyverbs' have no type information, and must not be searched with ``getattr``:
    reading some of their properties ends the process.

    Each closes with ``close()`` what was made on it first, and itself when it is collected.
    """

    #: "pyverbs" or "own".
    name: str
    Context: Any
    PD: Any
    CompChannel: Any
    CQ: Any
    QP: Any
    QPAttr: Any
    QPCap: Any
    QPInitAttr: Any
    MR: Any
    #: None: it has none.
    DmaBufMR: Any
    AH: Any
    AHAttr: Any
    GID: Any
    GlobalRoute: Any
    get_device_list: Any
    #: What failed calls raise; ``error_code`` is the errno, or -1 where it is not known.
    error: type[Exception]
    #: The module with the functions that give the C pointers behind the objects.
    pointers: Any
