/*
 * A process that ran before the recorder came: the device has loaded it, and tells what objects there are. Their
 * functions are replaced as ever. The program's and its libraries' calls of exported functions were bound to the device
 * long ago, in tables of addresses that the dynamic linker keeps for each of them: there, they are bound to the recorder.
 *
 * A function whose address the program has asked dlsym() for stays the device's. So do posting by the extended functions
 * and polling by them, of objects that were there before: a call of theirs may be halfway.
 */
#include <elf.h>
#include <link.h>
#include <rdma/rdma_cma.h>
#include <sys/mman.h>
#include <unistd.h>

#include "trace/recorder/recorder.h"

/* ---- calls -------------------------------------------------------------------------------------------- */

#if defined(__x86_64__)
enum { SLOT = R_X86_64_JUMP_SLOT, POINTER = R_X86_64_GLOB_DAT };
#elif defined(__aarch64__)
enum { SLOT = R_AARCH64_JUMP_SLOT, POINTER = R_AARCH64_GLOB_DAT };
#else
enum { SLOT = -1, POINTER = -1 };
#endif

/* Of newer headers than the oldest that this is built with. */
struct ibv_mr_init_attr;
struct ibv_mr *ibv_reg_mr_ex(struct ibv_pd *pd, struct ibv_mr_init_attr *given);

static const struct {
	const char *name;
	void (*function)(void);
} calls[] = {
#define CALL(name)                                                                                                     \
	{                                                                                                              \
#name, (void (*)(void))(name)                                                                          \
	}
	CALL(ibv_ack_cq_events),
	CALL(ibv_alloc_pd),
	CALL(ibv_close_device),
	CALL(ibv_create_ah),
	CALL(ibv_create_ah_from_wc),
	CALL(ibv_create_comp_channel),
	CALL(ibv_create_cq),
	CALL(ibv_create_qp),
	CALL(ibv_create_srq),
	CALL(ibv_dealloc_pd),
	CALL(ibv_dereg_mr),
	CALL(ibv_destroy_ah),
	CALL(ibv_destroy_comp_channel),
	CALL(ibv_destroy_cq),
	CALL(ibv_destroy_qp),
	CALL(ibv_destroy_srq),
	CALL(ibv_get_async_event),
	CALL(ibv_get_cq_event),
	CALL(ibv_modify_qp),
	CALL(ibv_open_device),
	CALL(ibv_qp_to_qp_ex),
	CALL(ibv_reg_dmabuf_mr),
	CALL(ibv_reg_mr),
	CALL(ibv_reg_mr_ex),
	CALL(ibv_reg_mr_iova),
	CALL(ibv_reg_mr_iova2),
	CALL(ibv_rereg_mr),
	CALL(ibv_resize_cq),
	CALL(rdma_accept),
	CALL(rdma_ack_cm_event),
	CALL(rdma_bind_addr),
	CALL(rdma_connect),
	CALL(rdma_create_ep),
	CALL(rdma_create_id),
	CALL(rdma_create_qp),
	CALL(rdma_create_qp_ex),
	CALL(rdma_destroy_id),
	CALL(rdma_disconnect),
	CALL(rdma_get_cm_event),
	CALL(rdma_listen),
	CALL(rdma_reject),
	CALL(rdma_resolve_addr),
	CALL(rdma_resolve_route),
#undef CALL
};

static void *call_of(const char *name)
{
	if (strncmp(name, "ibv_", 4) != 0 && strncmp(name, "rdma_", 5) != 0)
		return NULL;
	for (size_t n = 0; n < sizeof(calls) / sizeof(*calls); n++) {
		if (!strcmp(calls[n].name, name))
			return (void *)(uintptr_t)calls[n].function;
	}
	return NULL;
}

/* Tables that the dynamic linker has made read-only are so again afterwards. */
static void rebind(const struct dl_phdr_info *object, void **slot, void *to)
{
	const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), at = (uintptr_t)slot & ~(page - 1);
	bool read_only = false;

	for (unsigned n = 0; n < object->dlpi_phnum; n++) {
		const ElfW(Phdr) *part = &object->dlpi_phdr[n];
		/* As the linker does it: the last page, if it is only partly for reading, stays writable. */
		const uintptr_t begin = (object->dlpi_addr + part->p_vaddr) & ~(page - 1);
		const uintptr_t end = (object->dlpi_addr + part->p_vaddr + part->p_memsz) & ~(page - 1);
		read_only |= part->p_type == PT_GNU_RELRO && at >= begin && at < end;
	}
	if (read_only && mprotect((void *)at, page, PROT_READ | PROT_WRITE))
		return;
	__atomic_store_n(slot, to, __ATOMIC_RELEASE);
	if (read_only)
		mprotect((void *)at, page, PROT_READ);
}

struct table {
	const ElfW(Rela) * entries;
	size_t bytes;
};

static void bind_table(const struct dl_phdr_info *object, struct table table, const ElfW(Sym) * symbols,
		       const char *names)
{
	for (size_t n = 0; symbols && names && n < table.bytes / sizeof(*table.entries); n++) {
		const ElfW(Rela) *entry = &table.entries[n];
		const int type = (int)ELF64_R_TYPE(entry->r_info);
		void *to = type == SLOT || type == POINTER ?
				   call_of(names + symbols[ELF64_R_SYM(entry->r_info)].st_name) :
				   NULL;
		if (to)
			rebind(object, (void **)(object->dlpi_addr + entry->r_offset), to);
	}
}

static bool has(const struct dl_phdr_info *object, const void *address)
{
	for (unsigned n = 0; n < object->dlpi_phnum; n++) {
		const ElfW(Phdr) *part = &object->dlpi_phdr[n];
		const uintptr_t begin = object->dlpi_addr + part->p_vaddr;
		if (part->p_type == PT_LOAD && (uintptr_t)address >= begin &&
		    (uintptr_t)address < begin + part->p_memsz)
			return true;
	}
	return false;
}

static int bind_object(struct dl_phdr_info *object, size_t size, void *device)
{
	const ElfW(Dyn) *dynamic = NULL;
	const ElfW(Sym) *symbols = NULL;
	const char *names = NULL;
	struct table lazy = { 0 }, others = { 0 };

	(void)size;
	/* The recorder's own calls are for the device, and the device's for itself. */
	if (has(object, device) || has(object, calls))
		return 0;
	for (unsigned n = 0; n < object->dlpi_phnum; n++) {
		if (object->dlpi_phdr[n].p_type == PT_DYNAMIC)
			dynamic = (const ElfW(Dyn) *)(object->dlpi_addr + object->dlpi_phdr[n].p_vaddr);
	}
	for (; dynamic && dynamic->d_tag != DT_NULL; dynamic++) {
		/* glibc has turned these into addresses in memory; those of the kernel's own object it has not. */
		const uintptr_t at = dynamic->d_un.d_ptr < object->dlpi_addr ? object->dlpi_addr + dynamic->d_un.d_ptr :
									       dynamic->d_un.d_ptr;
		if (dynamic->d_tag == DT_SYMTAB)
			symbols = (const ElfW(Sym) *)at;
		else if (dynamic->d_tag == DT_STRTAB)
			names = (const char *)at;
		else if (dynamic->d_tag == DT_JMPREL)
			lazy.entries = (const ElfW(Rela) *)at;
		else if (dynamic->d_tag == DT_PLTRELSZ)
			lazy.bytes = dynamic->d_un.d_val;
		else if (dynamic->d_tag == DT_RELA)
			others.entries = (const ElfW(Rela) *)at;
		else if (dynamic->d_tag == DT_RELASZ)
			others.bytes = dynamic->d_un.d_val;
	}
	if (lazy.entries)
		bind_table(object, lazy, symbols, names);
	if (others.entries)
		bind_table(object, others, symbols, names);
	return 0;
}

/* ---- objects ------------------------------------------------------------------------------------------ */

static bool is_open(const struct soft_attach *with, const struct ibv_context *context)
{
	for (size_t n = 0; n < with->context_count; n++) {
		if (with->contexts[n] == context)
			return true;
	}
	return false;
}

static void note_qp(struct ibv_qp *qp, const void **last_pd)
{
	__typeof__(&ibv_query_qp) query = NEXT(ibv_query_qp);
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr;

	if (!query || query(qp, &attr, IBV_QP_STATE | IBV_QP_CAP, &init))
		return;
	if (qp->pd != *last_pd)
		trace_note_pd(qp->context, qp->pd);
	*last_pd = qp->pd;
	trace_qp_made(qp, qp->pd, &init.cap, &init.cap, init.sq_sig_all, 0, NULL);
	trace_note_state(qp, TRACE_FOUND);
}

soft_attach_call softdev_trace_attach;

TRACE_EXPORT int softdev_trace_attach(const struct soft_attach *with)
{
	const void *last_pd = NULL;

	if (dlsym(RTLD_DEFAULT, "ibv_open_device") == call_of("ibv_open_device"))
		return EALREADY; /* it was there from the start */
	trace_behind = with->device;
	const int error = trace_begin(with->directory);
	if (error)
		return error;
	for (size_t n = 0; n < with->context_count; n++)
		trace_adopt(with->contexts[n]);
	for (size_t n = 0; n < with->cq_count; n++) {
		if (is_open(with, with->cqs[n].context))
			trace_note_cq(&with->cqs[n]);
	}
	for (size_t n = 0; n < with->mr_count; n++) {
		if (is_open(with, with->mrs[n].context))
			trace_note_mr(&with->mrs[n]);
	}
	for (size_t n = 0; n < with->qp_count; n++) {
		if (is_open(with, with->qps[n]->context))
			note_qp(with->qps[n], &last_pd);
	}
	dl_iterate_phdr(bind_object, (void *)(uintptr_t)with->device_address);
	return 0;
}
