"""Verbs objects, each the owner of what a verbs call made: devices, PDs, completion queues, QPs, AHs.

Closing an object first closes those that were made on it and are still open, in the order that verbs want. What is not
closed is destroyed with its Python object, which keeps those alive that it was made on: so the order is right then, too.
The garbage collector does not look into these objects (``no_gc``). It would take a cycle apart in any order, and leave an
object without those that it was made on; no cycle can lead through them, since they refer to nothing but their parents.

Calls that fail raise VerbsCallError, the use of a closed object ValueError.
"""
from types import SimpleNamespace
from weakref import WeakSet

cimport cython
from libc.errno cimport ENODEV, errno
from libc.stdint cimport uint8_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset

from ._attributes cimport AHAttr, QPAttr, QPCap
from ._library cimport Destroy, Library, failure
from .._structs cimport (
    ibv_ah,
    ibv_ah_attr,
    ibv_comp_channel,
    ibv_context,
    ibv_cq,
    ibv_device,
    ibv_device_attr,
    ibv_gid_entry,
    ibv_pd,
    ibv_port_attr,
    ibv_qp,
    ibv_qp_attr,
    ibv_qp_init_attr,
)


cdef int leave(void *borrowed) noexcept nogil:
    return 0


@cython.no_gc
cdef class Handle:
    """A verbs object and its end. Not made directly; a context manager."""

    cdef int own(self, void *made, str maker, Destroy destroy, str destroyer, Library library, tuple parents) except -1:
        cdef Handle parent
        if made == NULL:
            raise failure(maker, errno)
        self.pointer = made
        self.destroy = destroy
        self.destroyer = destroyer
        self.library = library
        # It is closed with each of them, and they live as long.
        self.parents = parents
        for parent in parents:
            if parent.children is None:
                parent.children = WeakSet()
            parent.children.add(self)
        return 0

    cdef void *opened(self) except NULL:
        if self.pointer == NULL:
            raise ValueError(f"this {type(self).__name__} is closed: there is no verbs object behind it any more")
        if self.still_open is not None:
            self.still_open()
        return self.pointer

    cdef int borrow(self, void *pointer, object still_open, Library library, tuple parents) except -1:
        """Of somebody else, who closes it."""
        self.own(pointer, "", leave, "", library, parents)
        self.still_open = still_open
        return 0

    cdef int end(self) except -1:
        cdef void *pointer = self.pointer
        cdef int result
        if pointer == NULL:
            return 0
        # Taken away first: another thread may close it, too, while this one is in the call.
        self.pointer = NULL
        with nogil:
            result = self.destroy(pointer)
        if result != 0:
            self.pointer = pointer
            raise failure(self.destroyer, result if result > 0 else errno)
        return 0

    def close(self):
        """Close what is open on it, then itself. Idempotent. Raises VerbsCallError; it is then still open."""
        if self.children is not None:
            for child in sorted(self.children, key=_closing_order):
                child.close()
        self.end()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __dealloc__(self):
        self.end()


def _closing_order(Handle handle):
    """QPs first, which use all others; the completion channel after the queues on it; PDs last."""
    return handle.rank


@cython.no_gc
cdef class Context(Handle):
    """An open device."""

    def __init__(self, Library library not None, *, str name):
        cdef int count = 0, i
        cdef ibv_context *made = NULL
        cdef bytes wanted = name.encode()
        cdef ibv_device **devices = library.call.get_device_list(&count)
        if devices == NULL:
            raise failure("ibv_get_device_list", errno)
        cdef ibv_device *found = NULL
        try:
            for i in range(count):
                if <bytes>library.call.get_device_name(devices[i]) == wanted:
                    found = devices[i]
            if found == NULL:
                raise failure(f"no device is called {name}", ENODEV)
            with nogil:
                made = library.call.open_device(found)
            self.own(made, f"ibv_open_device({name})", library.call.close_device, "ibv_close_device", library, ())
        finally:
            library.call.free_device_list(devices)

    @property
    def name(self):
        """The device's name."""
        return (<bytes>self.library.call.get_device_name((<ibv_context *>self.opened()).device)).decode()

    @property
    def num_comp_vectors(self):
        """Number of completion vectors (interrupts)."""
        return (<ibv_context *>self.opened()).num_comp_vectors

    def query_device(self):
        """Limits of the device, named as in ``struct ibv_device_attr``."""
        cdef ibv_device_attr attr
        cdef ibv_context *context = <ibv_context *>self.opened()
        cdef int result
        with nogil:
            result = self.library.call.query_device(context, &attr)
        if result:
            raise failure("ibv_query_device", result)
        return SimpleNamespace(
            phys_port_cnt=attr.phys_port_cnt, max_qp=attr.max_qp, max_qp_wr=attr.max_qp_wr, max_sge=attr.max_sge,
            max_cqe=attr.max_cqe, max_mr=attr.max_mr, max_mr_size=attr.max_mr_size,
            max_qp_rd_atom=attr.max_qp_rd_atom, max_qp_init_rd_atom=attr.max_qp_init_rd_atom,
            atomic_caps=attr.atomic_cap)

    def query_port(self, uint8_t port):
        """Attributes of a port, named as in ``struct ibv_port_attr``."""
        cdef ibv_port_attr attr
        cdef ibv_context *context = <ibv_context *>self.opened()
        cdef int result
        # The exported function fills the fields of the first version of the struct; all that are read are among them.
        memset(&attr, 0, sizeof(attr))
        with nogil:
            result = self.library.call.query_port(context, port, &attr)
        if result:
            raise failure("ibv_query_port", result)
        return SimpleNamespace(
            state=attr.state, link_layer=attr.link_layer, gid_tbl_len=attr.gid_tbl_len, lid=attr.lid,
            active_mtu=attr.active_mtu, max_msg_sz=attr.max_msg_sz)

    def query_gid_table(self, size_t most):
        """The GIDs of all ports, without empty slots, at most so many; the halves of each are integers as they lie in
        memory."""
        cdef ibv_context *context = <ibv_context *>self.opened()
        cdef ibv_gid_entry *table
        cdef ssize_t found, i
        if self.library.call.query_gid_table == NULL:
            return self.query_gids_one_by_one(most)
        table = <ibv_gid_entry *>calloc(max(most, 1), sizeof(ibv_gid_entry))
        if table == NULL:
            raise MemoryError
        try:
            with nogil:
                found = self.library.call.query_gid_table(context, table, most, 0, sizeof(ibv_gid_entry))
            if found < 0:
                raise failure("ibv_query_gid_table", <int>-found)
            return [gid_entry(&table[i]) for i in range(found)]
        finally:
            free(table)

    def query_gids_one_by_one(self, size_t most):
        """The same by calls that every libibverbs has, with the types from sysfs: before rdma-core 32 there is no other
        way."""
        cdef ibv_context *context = <ibv_context *>self.opened()
        cdef ibv_gid_entry entry
        cdef int result, port, slot
        found = []
        for port in range(1, self.query_device().phys_port_cnt + 1):
            for slot in range(self.query_port(port).gid_tbl_len):
                memset(&entry, 0, sizeof(entry))
                with nogil:
                    result = self.library.call.query_gid(context, port, slot, &entry.gid)
                if result:
                    raise failure("ibv_query_gid", errno)
                if any(entry.gid.raw[:16]) and len(found) < most:
                    entry.gid_index, entry.port_num = slot, port
                    entry.gid_type = gid_type(self.name, port, slot)
                    found.append(gid_entry(&entry))
        return found

    def get_async_event(self):
        """The next asynchronous event: EAGAIN where there is none and the descriptor does not block."""
        cdef AsyncEvent event = AsyncEvent.__new__(AsyncEvent)
        cdef ibv_context *context = <ibv_context *>self.opened()
        cdef int result
        with nogil:
            result = self.library.call.get_async_event(context, &event.event)
        if result:
            raise failure("ibv_get_async_event", errno)
        event.library = self.library
        return event


def borrowed_context(Library library not None, uintptr_t pointer, still_open not None):
    """An open device of somebody else, who closes it after what is made on it here.

    :param still_open: called before each use; raises ValueError if it is closed.
    """
    cdef Context context = Context.__new__(Context)
    context.borrow(<void *>pointer, still_open, library, ())
    return context


def borrowed_pd(Context context not None, uintptr_t pointer, still_open not None):
    """A protection domain on ``context`` of somebody else, as :func:`borrowed_context`."""
    cdef PD pd = PD.__new__(PD)
    pd.rank = 4
    pd.borrow(<void *>pointer, still_open, context.library, (context,))
    return pd


cdef object gid_entry(const ibv_gid_entry *entry):
    cdef uint64_t[2] half
    memcpy(half, entry.gid.raw, 16)
    return SimpleNamespace(gid_subnet_prefix=half[0], gid_interface_id=half[1], gid_index=entry.gid_index,
                           port_num=entry.port_num, gid_type=entry.gid_type)


cdef int gid_type(str name, int port, int slot) except -1:
    """A number of ``enum ibv_gid_type``. Devices without that file have GIDs of InfiniBand only, or, as the software
    device, of RoCEv2 only."""
    try:
        with open(f"/sys/class/infiniband/{name}/ports/{port}/gid_attrs/types/{slot}") as file:
            return 2 if file.read().strip() == "RoCE v2" else 1 if port_is_ethernet(name, port) else 0
    except FileNotFoundError:
        return 2
    except OSError:  # EINVAL: the slot is empty by now
        return 0


cdef bint port_is_ethernet(str name, int port) except -1:
    with open(f"/sys/class/infiniband/{name}/ports/{port}/link_layer") as file:
        return file.read().strip() == "Ethernet"


cdef class AsyncEvent:
    """One asynchronous event. It must be acknowledged: destroying what it is about waits for that."""

    @property
    def event_type(self):
        """A number of ``enum ibv_event_type``."""
        return self.event.event_type

    def ack(self):
        with nogil:
            self.library.call.ack_async_event(&self.event)


@cython.no_gc
cdef class PD(Handle):
    """A protection domain."""

    def __init__(self, Context context not None):
        cdef ibv_context *device = <ibv_context *>context.opened()
        cdef Library library = context.library
        self.rank = 4
        self.own(library.call.alloc_pd(device), "ibv_alloc_pd", library.call.dealloc_pd, "ibv_dealloc_pd", library,
                 (context,))


@cython.no_gc
cdef class CompChannel(Handle):
    """A completion channel."""

    def __init__(self, Context context not None):
        cdef ibv_context *device = <ibv_context *>context.opened()
        cdef Library library = context.library
        self.rank = 3
        self.own(library.call.create_comp_channel(device), "ibv_create_comp_channel",
                 library.call.destroy_comp_channel, "ibv_destroy_comp_channel", library, (context,))


@cython.no_gc
cdef class CQ(Handle):
    """A completion queue. ``cq_context`` is not used: the parameter is pyverbs'."""

    def __init__(self, Context context not None, int cqe, cq_context=None, CompChannel channel=None, int comp_vector=0):
        cdef ibv_context *device = <ibv_context *>context.opened()
        cdef ibv_comp_channel *events = NULL if channel is None else <ibv_comp_channel *>channel.opened()
        cdef Library library = context.library
        cdef ibv_cq *made
        self.rank = 2
        with nogil:
            made = library.call.create_cq(device, cqe, NULL, events, comp_vector)
        self.own(made, "ibv_create_cq", library.call.destroy_cq, "ibv_destroy_cq", library,
                 (context,) if channel is None else (context, channel))


cdef class QPInitAttr:
    """What a queue pair is to be; ``cap`` becomes what was granted."""

    def __init__(self, int qp_type, CQ scq not None, CQ rcq not None, QPCap cap not None, int sq_sig_all=0):
        self.qp_type = qp_type
        self.scq = scq
        self.rcq = rcq
        self.cap = cap
        self.sq_sig_all = sq_sig_all


@cython.no_gc
cdef class QP(Handle):
    """A queue pair, in RESET."""

    def __init__(self, PD pd not None, QPInitAttr init not None):
        cdef ibv_pd *domain = <ibv_pd *>pd.opened()
        cdef Library library = pd.library
        cdef ibv_qp_init_attr attr
        cdef ibv_qp *made
        memset(&attr, 0, sizeof(attr))
        attr.qp_type = init.qp_type
        attr.send_cq = <ibv_cq *>init.scq.opened()
        attr.recv_cq = <ibv_cq *>init.rcq.opened()
        attr.sq_sig_all = init.sq_sig_all
        init.cap.write(&attr.cap)
        with nogil:
            made = library.call.create_qp(domain, &attr)
        self.own(made, "ibv_create_qp", library.call.destroy_qp, "ibv_destroy_qp", library,
                 (pd, init.scq, init.rcq))
        init.cap.read(&attr.cap)

    @property
    def qp_num(self):
        """Its number."""
        return (<ibv_qp *>self.opened()).qp_num

    def modify(self, QPAttr attr not None, int mask):
        """ibv_modify_qp with the fields of ``attr`` that ``mask`` names."""
        cdef ibv_qp *qp = <ibv_qp *>self.opened()
        cdef ibv_qp_attr written
        cdef int result
        attr.write(&written)
        with nogil:
            result = self.library.call.modify_qp(qp, &written, mask)
        if result:
            raise failure("ibv_modify_qp", result)


@cython.no_gc
cdef class AH(Handle):
    """An address handle."""

    def __init__(self, PD pd not None, *, AHAttr attr not None):
        cdef ibv_pd *domain = <ibv_pd *>pd.opened()
        cdef Library library = pd.library
        cdef ibv_ah_attr written
        cdef ibv_ah *made
        self.rank = 1
        attr.write(&written)
        with nogil:
            made = library.call.create_ah(domain, &written)
        self.own(made, "ibv_create_ah", library.call.destroy_ah, "ibv_destroy_ah", library, (pd,))
