"""The verbs functions of one library, looked up when it is loaded: of libibverbs, or of the software device.

With libibverbs each function is taken in the version whose structs are those of today's <infiniband/verbs.h>; several
have a second one from before 2007. The software device's functions have no versions, and hand on to libibverbs what is
not theirs.
"""
import os
from collections import namedtuple

from libc.errno cimport errno

cdef extern from "<dlfcn.h>" nogil:
    enum:
        RTLD_NOW
    void *dlopen(const char *, int)
    void *dlsym(void *, const char *)
    void *dlvsym(void *, const char *, const char *)
    const char *dlerror()

#: One device of the list.
DeviceEntry = namedtuple("DeviceEntry", "name")


class VerbsCallError(Exception):
    """A verbs call failed; ``error_code`` is its errno."""

    def __init__(self, text, error_code):
        super().__init__(text)
        self.error_code = error_code


cdef object failure(str what, int number):
    return VerbsCallError(f"{what}: {os.strerror(number)}", number)


cdef class Library:
    """Loads the library at ``path`` (a name is searched as the dynamic linker does) and finds its functions.

    :param versioned: whether its symbols have the versions of libibverbs.
    :raises OSError: it cannot be loaded, or lacks a function.
    """

    def __init__(self, str path, *, versioned):
        cdef void *handle = dlopen(os.fsencode(path), RTLD_NOW)
        cdef Functions *call = &self.call
        cdef bint by_version = versioned
        if handle == NULL:
            raise OSError(dlerror().decode())
        self.path = path
        find(handle, path, by_version, b"ibv_get_device_list", b"IBVERBS_1.1", <void **>&call.get_device_list)
        find(handle, path, by_version, b"ibv_free_device_list", b"IBVERBS_1.1", <void **>&call.free_device_list)
        find(handle, path, by_version, b"ibv_get_device_name", b"IBVERBS_1.1", <void **>&call.get_device_name)
        find(handle, path, by_version, b"ibv_open_device", b"IBVERBS_1.1", <void **>&call.open_device)
        find(handle, path, by_version, b"ibv_close_device", b"IBVERBS_1.1", <void **>&call.close_device)
        find(handle, path, by_version, b"ibv_query_device", b"IBVERBS_1.1", <void **>&call.query_device)
        find(handle, path, by_version, b"ibv_query_port", b"IBVERBS_1.1", <void **>&call.query_port)
        find(handle, path, by_version, b"ibv_query_gid", b"IBVERBS_1.1", <void **>&call.query_gid)
        find(handle, path, by_version, b"ibv_get_async_event", b"IBVERBS_1.1", <void **>&call.get_async_event)
        find(handle, path, by_version, b"ibv_ack_async_event", b"IBVERBS_1.1", <void **>&call.ack_async_event)
        find(handle, path, by_version, b"ibv_alloc_pd", b"IBVERBS_1.1", <void **>&call.alloc_pd)
        find(handle, path, by_version, b"ibv_dealloc_pd", b"IBVERBS_1.1", <void **>&call.dealloc_pd)
        find(handle, path, by_version, b"ibv_create_comp_channel", b"IBVERBS_1.0", <void **>&call.create_comp_channel)
        find(handle, path, by_version, b"ibv_destroy_comp_channel", b"IBVERBS_1.0", <void **>&call.destroy_comp_channel)
        find(handle, path, by_version, b"ibv_create_cq", b"IBVERBS_1.1", <void **>&call.create_cq)
        find(handle, path, by_version, b"ibv_destroy_cq", b"IBVERBS_1.1", <void **>&call.destroy_cq)
        find(handle, path, by_version, b"ibv_reg_mr", b"IBVERBS_1.1", <void **>&call.reg_mr)
        find(handle, path, by_version, b"ibv_reg_mr_iova", b"IBVERBS_1.7", <void **>&call.reg_mr_iova)
        find(handle, path, by_version, b"ibv_reg_mr_iova2", b"IBVERBS_1.8", <void **>&call.reg_mr_iova2)
        find(handle, path, by_version, b"ibv_dereg_mr", b"IBVERBS_1.1", <void **>&call.dereg_mr)
        find(handle, path, by_version, b"ibv_create_qp", b"IBVERBS_1.1", <void **>&call.create_qp)
        find(handle, path, by_version, b"ibv_modify_qp", b"IBVERBS_1.1", <void **>&call.modify_qp)
        find(handle, path, by_version, b"ibv_destroy_qp", b"IBVERBS_1.1", <void **>&call.destroy_qp)
        find(handle, path, by_version, b"ibv_create_ah", b"IBVERBS_1.1", <void **>&call.create_ah)
        find(handle, path, by_version, b"ibv_destroy_ah", b"IBVERBS_1.1", <void **>&call.destroy_ah)
        # Younger than rdma-core 28: NULL where they are missing, and their callers know what to do.
        call.query_gid_table = <gid_table>look(handle, by_version, b"_ibv_query_gid_table", b"IBVERBS_1.11")
        call.reg_dmabuf_mr = <reg_dmabuf>look(handle, by_version, b"ibv_reg_dmabuf_mr", b"IBVERBS_1.12")

    def device_list(self):
        """The devices there are, each with its ``name`` as bytes. Raises VerbsCallError."""
        cdef int count = 0, i
        cdef ibv_device **devices
        with nogil:
            devices = self.call.get_device_list(&count)
        if devices == NULL:
            raise failure("no list of devices", errno)
        try:
            return [DeviceEntry(<bytes>self.call.get_device_name(devices[i])) for i in range(count)]
        finally:
            self.call.free_device_list(devices)


cdef void *look(void *handle, bint by_version, const char *name, const char *version) noexcept:
    return dlvsym(handle, name, version) if by_version else dlsym(handle, name)


cdef int find(void *handle, str path, bint by_version, bytes name, bytes version, void **slot) except -1:
    slot[0] = look(handle, by_version, name, version)
    if slot[0] == NULL:
        raise OSError(f"{path} has no function {name.decode()} ({version.decode()}): rdma-core 28 or newer is needed")
    return 0
