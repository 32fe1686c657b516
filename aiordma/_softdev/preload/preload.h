/*
 * What the program sees of the device besides the ibv_ functions that verbs exports itself: the other functions of
 * libibverbs (interpose.c) and those of librdmacm (cm_export.c). Each decides whether an object or the process is ours,
 * and calls our function or the real library's.
 *
 * What it promises: no symbol of its own but what the two libraries export, and the aiordma_soft_ functions; none has a
 * version, so that it satisfies references to every one.
 * What it calls: every folder. Who may call it: the program only.
 * Threads: any. No lock held.
 */
#ifndef AIORDMA_SOFT_PRELOAD_H
#define AIORDMA_SOFT_PRELOAD_H

#include "cm/cm.h"
#include "verbs/verbs.h"

#endif
