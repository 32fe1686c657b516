/*
 * Reads recordings. A file is not trusted: it may be cut short, written over while it is read, or made by somebody
 * else. Every number that is used as a place, a length or a name is checked here; what remains are values that may be
 * wrong.
 *
 * Threads: one. It calls nothing of a verbs library.
 */
#ifndef SOFTDEV_TRACE_READER_H
#define SOFTDEV_TRACE_READER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "trace/record.h"

struct trace_item {
	uint64_t ns; /* since the recording began */
	uint32_t ring, order;
	struct trace_record record;
};

struct trace_recording {
	struct trace_header header;
	struct trace_item *items; /* in the order of time */
	size_t count;
	uint64_t overwritten[3]; /* older records that had to give way: of rings 0, 1, and of threads */
	uint64_t unreadable;
	double ns_per_tick;
	uint32_t threads[TRACE_RINGS];
	/* Left by trace_load(): whether the process runs, and then the time at which it was looked at. */
	bool alive;
	uint64_t now;
};

/* Copies bytes of the file. False: it has none there. */
typedef bool (*trace_fetch)(void *file, uint64_t offset, void *to, size_t length);

/* The same instant by both clocks of the reader, on the host that has recorded. NULL: on another one. */
struct trace_clocks {
	uint64_t ns, ticks;
};

/* NULL, or what is wrong with the file. trace_free() in either case. */
const char *trace_load(struct trace_recording *to, trace_fetch fetch, void *file, const struct trace_clocks *clocks);
/* The same for a file by its name; says whether the process is alive. */
const char *trace_load_file(struct trace_recording *recording, const char *path);
void trace_free(struct trace_recording *recording);
/* Only the header, of a file by its name: NULL, or what is wrong with it. */
const char *trace_peek_file(struct trace_header *header, const char *path);

/* How many records such a file has at most; 0: it is none. */
uint64_t trace_peek_records(const char *path);

/* The parts of these, for those that read a file on while it is written. */
const char *trace_load_header(struct trace_header *header, trace_fetch fetch, void *file);
double trace_ns_per_tick(const struct trace_header *header, const struct trace_clocks *clocks);
/* Whether it is one; its strings end and are printable then. */
bool trace_is_record(struct trace_record *record);
bool trace_fetch_file(void *fd, uint64_t offset, void *to, size_t length);
struct trace_clocks trace_clocks_now(void);
/* Whether the process runs that has recorded, as far as can be known on this host. */
bool trace_is_alive(const struct trace_header *header);

/* ---- names.c: never NULL ------------------------------------------------------------------------------ */

const char *trace_kind_name(unsigned kind);
const char *trace_opcode_name(unsigned opcode);    /* enum ibv_wr_opcode */
const char *trace_an_opcode(unsigned opcode);      /* with its article */
const char *trace_completed_name(unsigned opcode); /* enum ibv_wc_opcode */
const char *trace_status_name(unsigned status);    /* IBV_WC_... without the prefix */
const char *trace_state_name(unsigned state);
const char *trace_async_name(unsigned type);
const char *trace_cm_event_name(unsigned event);
const char *trace_cm_call_name(unsigned call);
const char *trace_qp_type_name(unsigned type);
const char *trace_gid_type_name(unsigned type);
const char *trace_errno_name(unsigned error);
/* Bytes of an enum ibv_mtu; 0: none. */
unsigned trace_mtu_bytes(unsigned mtu);
enum { TRACE_ADDRESS_BYTES = 48, TRACE_FLAGS_BYTES = 320 };
/* A GID as an address: IPv4 where it is one. */
const char *trace_gid_text(const uint8_t gid[16], char text[TRACE_ADDRESS_BYTES]);
/* Names of the bits, as a program writes them: "LOCAL_WRITE | REMOTE_READ"; "none". */
const char *trace_access_text(uint32_t access, char text[TRACE_FLAGS_BYTES]);
const char *trace_mask_text(uint32_t mask, char text[TRACE_FLAGS_BYTES]);

/* ---- print.c ------------------------------------------------------------------------------------------ */

/* Inside quotes, of JSON and of labels: of printable characters, which the reader has left. */
void trace_print_quoted(FILE *to, const char *text);
/* One line. */
void trace_print(FILE *to, const struct trace_recording *recording, const struct trace_item *item);

#endif
