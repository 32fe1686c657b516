"""A verbs binding in Cython: it needs no pyverbs, and for the software device no libibverbs either.

It has what aiordma uses of pyverbs, under pyverbs' names (:class:`aiordma.verbs.binding.Binding`). The verbs
functions are looked up in a library when one is needed: in the software device's, if that is used, which
hands on to libibverbs what is not its own; otherwise in libibverbs, from rdma-core 28 on. Nothing depends on
what the program imported before.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from ..binding import Binding

if TYPE_CHECKING:
    from ._library import Library

__all__ = ["bind", "library"]

LIBIBVERBS = "libibverbs.so.1"


@functools.cache
def library(soft: str | None) -> Library:
    """The verbs functions of the software device's library at ``soft``; None: of libibverbs.

    :raises ImportError, OSError: as :func:`bind`.
    """
    from . import _library

    return _library.Library(soft or LIBIBVERBS, versioned=soft is None)


@functools.cache
def bind(soft: str | None) -> Binding:
    """The binding on the software device's library at ``soft``; None: on libibverbs.

    :raises ImportError: the compiled modules are not there.
    :raises OSError: the library cannot be loaded, or is too old.
    """
    from . import _attributes, _library, _memory, _objects, _pointers

    functions = library(soft)
    return Binding(
        name="own",
        Context=functools.partial(_objects.Context, functions),
        PD=_objects.PD,
        CompChannel=_objects.CompChannel,
        CQ=_objects.CQ,
        QP=_objects.QP,
        QPAttr=_attributes.QPAttr,
        QPCap=_attributes.QPCap,
        QPInitAttr=_objects.QPInitAttr,
        MR=_memory.MR,
        DmaBufMR=_memory.DmaBufMR,
        AH=_objects.AH,
        AHAttr=_attributes.AHAttr,
        GID=_attributes.GID,
        GlobalRoute=_attributes.GlobalRoute,
        get_device_list=functions.device_list,
        error=_library.VerbsCallError,
        pointers=_pointers,
    )
