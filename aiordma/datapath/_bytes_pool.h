/* Resetting a large bytes object, so that its only owner can fill it again. */
#ifndef AIORDMA_SPARE_H
#define AIORDMA_SPARE_H
#include <Python.h>

/* Whether the caller's reference to the object is the only one. A count of one says less from Python 3.14 on. */
static inline int aio_is_alone(PyObject *object)
{
#if PY_VERSION_HEX >= 0x030E0000
	return PyUnstable_Object_IsUniquelyReferenced(object);
#else
	return Py_REFCNT(object) == 1;
#endif
}

/* Only for an exact bytes object without other references, and for size <= the size it was made with: the
 * memory stays as it was allocated, and PyObject_Free() needs no size. _PyBytes_Resize() would call
 * realloc(), which shrinks the block and releases the rest. */
static inline void aio_spare_reset(PyObject *bytes, Py_ssize_t size)
{
	Py_SET_SIZE((PyVarObject *)bytes, size);
	PyBytes_AS_STRING(bytes)[size] = '\0';
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
	((PyBytesObject *)bytes)->ob_shash = -1;
#pragma GCC diagnostic pop
}
#endif
