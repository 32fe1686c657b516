# cython: language_level=3
"""The first step of a coroutine, run as another task: see ``_eager.py``, whose ``first_step`` is the same in Python.

A coroutine that ends in its first step raises ``StopIteration`` there, with a traceback, through two frames. Here
its end is a return value: 5,300 instructions less for every handler that does not wait.
"""
from cpython.contextvars cimport PyContext_Enter, PyContext_Exit
from cpython.object cimport PyObject

cdef extern from "Python.h":
    ctypedef enum PySendResult:
        PYGEN_RETURN
        PYGEN_ERROR
        PYGEN_NEXT
    PySendResult PyIter_Send(object coro, object value, PyObject **result) except PYGEN_ERROR
    void Py_DECREF(PyObject *o)


def first_step(loop, enter, leave, running, task, coro, context, ended):
    """Run ``coro`` up to its first wait, in ``context``; what it waits for, or ``ended``.

    :param enter, leave: asyncio's functions that enter and leave a task.
    :param running: the task that runs now, or None.
    :param task: the task that the coroutine is to see as its own.
    """
    cdef PyObject *found = NULL
    cdef PySendResult how
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
    return ended if how == PYGEN_RETURN else result
