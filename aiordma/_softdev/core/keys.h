/*
 * The table of keys, as memory regions (pd_mr.c) and windows (mw.c) use it.
 */
#ifndef AIORDMA_SOFT_KEYS_H
#define AIORDMA_SOFT_KEYS_H

#include "core/engine.h"

/* Takes an entry nobody finds yet. 0 or ENOMEM. */
int soft_key_reserve(uint32_t *index);
void soft_key_unreserve(uint32_t index);
/* From here on the region is found, here and by peers; it must not change any more. */
void soft_key_publish(uint32_t index, struct soft_region *region);
/* The entry stays reserved. Accesses that began before may go on until soft_quiesce(). */
void soft_key_withdraw(uint32_t index);

#endif
