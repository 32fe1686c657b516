/* Leading part of the structs behind pyverbs' classes, the same in every release from rdma-core 39 to 65:
 * the Python object head, __weakref__, the logger, the vtable of PyverbsCM, then the class's own first field.
 * Everything pyverbs has added since was appended, so the C pointer stays where it is. The layout is private to
 * pyverbs, hence aiordma._accessors.check(): it proves, on live objects, that this page still tells the truth. */
#ifndef AIORDMA_PVLAYOUT_H
#define AIORDMA_PVLAYOUT_H

#include <Python.h>
#include <infiniband/verbs.h>

/* One struct a line, as a table; the formatter cannot know that the macros end in semicolons. */
/* clang-format off */
#define PV_OBJECT PyObject_HEAD PyObject *weakrefs; PyObject *logger;
#define PV_CLOSABLE PV_OBJECT void *vtable;

typedef struct { PV_CLOSABLE struct ibv_context *context; } pv_Context;
typedef struct { PV_CLOSABLE struct ibv_pd *pd; } pv_PD;
typedef struct { PV_CLOSABLE struct ibv_comp_channel *channel; } pv_CompChannel;
typedef struct { PV_CLOSABLE struct ibv_cq *cq; } pv_CQ;
typedef struct { PV_CLOSABLE struct ibv_qp *qp; } pv_QP;
typedef struct { PV_CLOSABLE struct ibv_ah *ah; } pv_AH;
typedef struct { PV_CLOSABLE PyObject *pd; PyObject *cmid; struct ibv_mr *mr; } pv_MR;
/* Not closable, so no vtable: the event itself follows the head. */
typedef struct { PV_OBJECT struct ibv_async_event event; } pv_AsyncEvent;
/* clang-format on */

#undef PV_OBJECT
#undef PV_CLOSABLE
#endif
