/* What a large bytes object needs to be filled again by its only owner. */
#ifndef AIORDMA_SPARE_H
#define AIORDMA_SPARE_H
#include <Python.h>

/* Only for an exact bytes object that nobody else refers to, and for size <= the size it was made with: the
 * memory stays as it was allocated, and PyObject_Free() needs no size. _PyBytes_Resize() would do the same
 * through realloc(), which cuts the block to measure and gives the rest away. */
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
