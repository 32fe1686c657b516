/*
 * Extended queue pairs: work requests that are built call by call. What was built waits in the thread's own memory
 * until wr_complete says what has become of it.
 */
#include <pthread.h>
#include <stdlib.h>

#include "trace/recorder/recorder.h"

/* Never freed, but used again: a thread may remember one whose queue pair has gone. */
struct qp_ex {
	_Atomic(struct ibv_qp_ex *) owner; /* NULL: unused */
	struct qp_ex *next;                /* of the unused ones */
	struct ibv_qp_ex device;           /* its functions before they were replaced */
	uint8_t number;
	uint32_t most; /* entries of a list; the device does not look at a longer one */
};
static struct qp_ex *unused;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

enum { BUILT = 64 };

static _Thread_local struct {
	struct ibv_qp_ex *qp; /* whose list is open */
	struct qp_ex *of;     /* the last one looked up */
	unsigned count;
	uint8_t place;
	uint64_t stamp;
	/* Not here itself: what a library that is loaded later has for each thread, the C library has little room for. */
	struct trace_record *built;
} open_list __attribute__((tls_model("initial-exec")));

static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_key_t key; /* frees it when the thread ends */

static void make_key(void)
{
	pthread_key_create(&key, free);
}

static TRACE_AFTER void make_room(void)
{
	pthread_once(&once, make_key);
	open_list.built = calloc(BUILT, sizeof(*open_list.built));
	pthread_setspecific(key, open_list.built);
}

static struct qp_ex *of(struct ibv_qp_ex *qp)
{
	struct qp_ex *found = open_list.of;

	if (trace_unlikely(!found || atomic_load_explicit(&found->owner, memory_order_relaxed) != qp)) {
		found = trace_find(qp);
		open_list.of = found;
	}
	return found;
}

/* The error is of the whole list: none of it was posted. */
static void flush(int error)
{
	const unsigned count = open_list.count;

	for (unsigned i = 0; i < count; i++) {
		struct trace_record *record = trace_next();
		if (!record)
			break;
		*record = open_list.built[i];
		record->error = (uint16_t)error;
		trace_put();
	}
	open_list.count = 0;
}

static struct trace_record *add(struct ibv_qp_ex *qp, enum ibv_wr_opcode opcode, uint64_t remote, uint32_t rkey)
{
	struct trace_record *record;
	const uint8_t device = of(qp)->number;

	if (open_list.qp != qp || trace_unlikely(!open_list.built))
		return NULL; /* there is no memory, or it is a second list of this thread, while another is open */
	if (open_list.count == BUILT)
		flush(0);
	record = &open_list.built[open_list.count++];
	record->stamp = open_list.stamp;
	record->kind = TRACE_SEND;
	record->device = device;
	record->error = 0;
	record->qpn = qp->qp_base.qp_num;
	record->object = (uintptr_t)qp;
	record->wr = (struct trace_wr){ .wr_id = qp->wr_id,
					.remote = remote,
					.rkey = rkey,
					.opcode = (uint8_t)opcode,
					.flags = (uint8_t)qp->wr_flags,
					.place = open_list.place };
	if (open_list.place < 255)
		open_list.place++;
	return record;
}

static struct trace_wr *last(struct ibv_qp_ex *qp)
{
	return open_list.qp == qp && open_list.count ? &open_list.built[open_list.count - 1].wr : NULL;
}

static void wr_start(struct ibv_qp_ex *qp)
{
	struct qp_ex *found = of(qp);

	if (trace_unlikely(!open_list.built))
		make_room();
	if (open_list.count)
		flush(0);
	open_list.qp = qp;
	open_list.place = 0;
	open_list.stamp = trace_ticks();
	found->device.wr_start(qp);
}

static int wr_complete(struct ibv_qp_ex *qp)
{
	const int error = of(qp)->device.wr_complete(qp);

	if (open_list.qp == qp) {
		const int saved = errno;
		flush(error);
		open_list.qp = NULL;
		errno = saved;
	}
	return error;
}

static void wr_abort(struct ibv_qp_ex *qp)
{
	struct qp_ex *found = of(qp);

	if (open_list.qp == qp) {
		open_list.count = 0;
		open_list.qp = NULL;
	}
	found->device.wr_abort(qp);
}

static void wr_send(struct ibv_qp_ex *qp)
{
	of(qp)->device.wr_send(qp);
	add(qp, IBV_WR_SEND, 0, 0);
}

static void wr_send_imm(struct ibv_qp_ex *qp, __be32 imm)
{
	of(qp)->device.wr_send_imm(qp, imm);
	add(qp, IBV_WR_SEND_WITH_IMM, 0, 0);
}

static void wr_send_inv(struct ibv_qp_ex *qp, uint32_t rkey)
{
	of(qp)->device.wr_send_inv(qp, rkey);
	add(qp, IBV_WR_SEND_WITH_INV, 0, rkey);
}

static void wr_local_inv(struct ibv_qp_ex *qp, uint32_t rkey)
{
	of(qp)->device.wr_local_inv(qp, rkey);
	add(qp, IBV_WR_LOCAL_INV, 0, rkey);
}

static void wr_rdma_read(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t remote)
{
	of(qp)->device.wr_rdma_read(qp, rkey, remote);
	add(qp, IBV_WR_RDMA_READ, remote, rkey);
}

static void wr_rdma_write(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t remote)
{
	of(qp)->device.wr_rdma_write(qp, rkey, remote);
	add(qp, IBV_WR_RDMA_WRITE, remote, rkey);
}

static void wr_rdma_write_imm(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t remote, __be32 imm)
{
	of(qp)->device.wr_rdma_write_imm(qp, rkey, remote, imm);
	add(qp, IBV_WR_RDMA_WRITE_WITH_IMM, remote, rkey);
}

static void wr_atomic_cmp_swp(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t remote, uint64_t compare, uint64_t swap)
{
	of(qp)->device.wr_atomic_cmp_swp(qp, rkey, remote, compare, swap);
	add(qp, IBV_WR_ATOMIC_CMP_AND_SWP, remote, rkey);
}

static void wr_atomic_fetch_add(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t remote, uint64_t more)
{
	of(qp)->device.wr_atomic_fetch_add(qp, rkey, remote, more);
	add(qp, IBV_WR_ATOMIC_FETCH_AND_ADD, remote, rkey);
}

static void wr_bind_mw(struct ibv_qp_ex *qp, struct ibv_mw *mw, uint32_t rkey, const struct ibv_mw_bind_info *info)
{
	of(qp)->device.wr_bind_mw(qp, mw, rkey, info);
	add(qp, IBV_WR_BIND_MW, (uintptr_t)mw, rkey);
}

static void wr_set_ud_addr(struct ibv_qp_ex *qp, struct ibv_ah *ah, uint32_t qpn, uint32_t qkey)
{
	struct trace_wr *wr = last(qp);

	of(qp)->device.wr_set_ud_addr(qp, ah, qpn, qkey);
	if (!wr)
		return;
	wr->address = qkey;
	wr->remote = (uintptr_t)ah;
	wr->rkey = qpn;
}

static void note_list(struct ibv_qp_ex *qp, uint32_t lkey, uint64_t address, uint64_t length, size_t count)
{
	struct trace_wr *wr = last(qp);

	if (!wr)
		return;
	if (qp->qp_base.qp_type != IBV_QPT_UD)
		wr->address = address;
	wr->lkey = lkey;
	wr->length = length > UINT32_MAX ? UINT32_MAX : (uint32_t)length;
	wr->num_sge = (uint8_t)(count < 255 ? count : 255);
}

static void wr_set_sge(struct ibv_qp_ex *qp, uint32_t lkey, uint64_t address, uint32_t length)
{
	of(qp)->device.wr_set_sge(qp, lkey, address, length);
	note_list(qp, lkey, address, length, 1);
}

static void wr_set_sge_list(struct ibv_qp_ex *qp, size_t count, const struct ibv_sge *list)
{
	uint64_t length = 0;

	of(qp)->device.wr_set_sge_list(qp, count, list);
	const bool readable = count && count <= of(qp)->most;
	for (size_t i = 0; readable && i < count; i++)
		length += list[i].length;
	note_list(qp, readable ? list->lkey : 0, readable ? list->addr : 0, length, count);
}

static void note_inline(struct ibv_qp_ex *qp, uint64_t address, uint64_t length)
{
	struct trace_wr *wr = last(qp);

	note_list(qp, 0, address, length, 1);
	if (wr)
		wr->flags |= IBV_SEND_INLINE;
}

static void wr_set_inline_data(struct ibv_qp_ex *qp, void *address, size_t length)
{
	of(qp)->device.wr_set_inline_data(qp, address, length);
	note_inline(qp, (uintptr_t)address, length);
}

static void wr_set_inline_data_list(struct ibv_qp_ex *qp, size_t count, const struct ibv_data_buf *list)
{
	uint64_t length = 0;

	of(qp)->device.wr_set_inline_data_list(qp, count, list);
	for (size_t i = 0; i < count; i++)
		length += list[i].length;
	note_inline(qp, count ? (uintptr_t)list->addr : 0, length);
}

static struct qp_ex *take(void)
{
	pthread_mutex_lock(&lock);
	struct qp_ex *one = unused;
	if (one)
		unused = one->next;
	pthread_mutex_unlock(&lock);
	return one ? one : calloc(1, sizeof(*one));
}

static void give_back(struct qp_ex *one)
{
	atomic_store(&one->owner, NULL);
	pthread_mutex_lock(&lock);
	one->next = unused;
	unused = one;
	pthread_mutex_unlock(&lock);
}

void trace_adopt_qp_ex(struct ibv_qp_ex *qp)
{
	__typeof__(&ibv_query_qp) query = NEXT(ibv_query_qp);
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr;
	struct qp_ex *saved;

	if (!qp || !qp->wr_start || qp->wr_start == wr_start)
		return;
	saved = take();
	if (!saved)
		return;
	saved->device = *qp;
	saved->number = trace_device_of(qp->qp_base.context);
	saved->most = !query || query(&qp->qp_base, &attr, IBV_QP_CAP, &init) ? 1 : init.cap.max_send_sge;
	atomic_store(&saved->owner, qp);
	if (!trace_enter(qp, saved)) {
		give_back(saved);
		return;
	}
#define REPLACE(name)                                                                                                  \
	if (qp->name)                                                                                                  \
	qp->name = name
	REPLACE(wr_start);
	REPLACE(wr_complete);
	REPLACE(wr_abort);
	REPLACE(wr_send);
	REPLACE(wr_send_imm);
	REPLACE(wr_send_inv);
	REPLACE(wr_local_inv);
	REPLACE(wr_rdma_read);
	REPLACE(wr_rdma_write);
	REPLACE(wr_rdma_write_imm);
	REPLACE(wr_atomic_cmp_swp);
	REPLACE(wr_atomic_fetch_add);
	REPLACE(wr_bind_mw);
	REPLACE(wr_set_ud_addr);
	REPLACE(wr_set_sge);
	REPLACE(wr_set_sge_list);
	REPLACE(wr_set_inline_data);
	REPLACE(wr_set_inline_data_list);
#undef REPLACE
}

void trace_forget_qp_ex(const struct ibv_qp *qp, void *saved)
{
	trace_leave_as(qp, saved);
	give_back(saved);
	if (open_list.qp && &open_list.qp->qp_base == qp)
		open_list.qp = NULL;
}
