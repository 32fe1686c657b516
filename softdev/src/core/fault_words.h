/*
 * A fault in words, without a device: what programs, plans and other processes may ask for.
 */
#ifndef SOFTDEV_FAULT_WORDS_H
#define SOFTDEV_FAULT_WORDS_H

#include "base/base.h"

enum { SOFT_FAULT_WHY = 320, SOFT_FAULT_TEXT = 200 };
enum soft_fault_port { SOFT_FAULT_PORT_AS_IS, SOFT_FAULT_PORT_DOWN, SOFT_FAULT_PORT_UP };

struct soft_fault_words {
	uint32_t chances;                  /* bits of enum soft_fault: which of the next are named */
	uint64_t chance[SOFT_FAULT_KINDS]; /* of 2^53 */
	bool seeded, kills, announces, has_gid;
	uint64_t seed;
	uint64_t at_ns, for_ns, every_ns; /* begins after; lasts, 0: until it is ended; begins again after, 0: never */
	uint64_t slow_ns, late_ns;
	uint32_t qp;     /* that dies; 0: any */
	uint32_t device; /* that is meant, plus one; 0: all */
	uint32_t gid;
	uint32_t mtu; /* enum ibv_mtu; 0: not named */
	enum soft_fault_port port;
	enum ibv_event_type event; /* to be announced */
};

/*
 * Reads one request of `size` bytes: words `name=value`, between blanks or commas. 0, or EINVAL with the reason. No byte
 * beyond is read, and none has to be zero.
 */
int soft_fault_read(const char *text, size_t size, struct soft_fault_words *words, char why[SOFT_FAULT_WHY]);
/* Whether it names anything to be done. */
bool soft_fault_is_empty(const struct soft_fault_words *words);
/* Whether something of it lasts, and is not done at once. */
bool soft_fault_lasts(const struct soft_fault_words *words);
/*
 * The next request of a plan: up to a semicolon or, in front of the next "[[fault]]", the lines below one. Comments
 * and quotation marks are left out. Copies it and returns its bytes; *at: where to go on, size at the end. Too long: more
 * bytes than there is room for.
 */
size_t soft_fault_next(const char *plan, size_t size, size_t *at, char *to, size_t room);

#endif
