# cython: language_level=3
"""The first step of a coroutine, run as another task: see ``_eager.py``, whose functions are the same in Python.

A coroutine that ends in its first step raises ``StopIteration`` there, with a traceback, through two frames. Here
its end is a return value: 5,300 instructions less for every handler that does not wait.
"""
from _weakref import getweakrefcount

from cpython.contextvars cimport PyContext_Enter, PyContext_Exit
from cpython.object cimport PyObject, PyObject_Call
from cpython.ref cimport Py_REFCNT

cdef extern from "Python.h":
    ctypedef enum PySendResult:
        PYGEN_RETURN
        PYGEN_ERROR
        PYGEN_NEXT
    PySendResult PyIter_Send(object coro, object value, PyObject **result) except PYGEN_ERROR
    void Py_DECREF(PyObject *o)


def first_step(loop, enter, leave, running, task, coro, context, ended, kept):
    """Run ``coro`` up to its first wait, in ``context``; what it waits for, or how it has ended.

    :param enter, leave: asyncio's functions that enter and leave a task.
    :param running: the task that runs now, or None.
    :param task: the task that the coroutine is to see as its own.
    :param ended: it has ended, and nothing refers to the task that did not before.
    :param kept: it has ended, and something does.
    """
    cdef PyObject *found = NULL
    cdef PySendResult how
    cdef Py_ssize_t references = Py_REFCNT(task)
    cdef object weak = getweakrefcount(task)
    if running is not None:
        leave(loop, running)
    enter(loop, task)
    try:
        PyContext_Enter(context)
        try:
            how = PyIter_Send(coro, None, &found)
        finally:
            PyContext_Exit(context)
    finally:
        leave(loop, task)
        if running is not None:
            enter(loop, running)
    result = <object>found
    Py_DECREF(found)
    if how != PYGEN_RETURN:
        return result
    return ended if Py_REFCNT(task) == references and getweakrefcount(task) == weak else kept


def call_apart(loop, enter, leave, running, function, args, kwargs, context):
    """Call ``function`` in ``context``, and as no task at all."""
    if running is not None:
        leave(loop, running)
    try:
        PyContext_Enter(context)
        try:
            return PyObject_Call(function, tuple(args), kwargs)
        finally:
            PyContext_Exit(context)
    finally:
        if running is not None:
            enter(loop, running)
