/*
 * The exported interface of the device, besides the ibv_ functions that verbs exports itself: the other functions of
 * libibverbs (interpose.c), those of librdmacm (cm_export.c), and one of UCX (ucx.c). Each decides whether the object or the process uses
 * the software device, and calls our function or the real library's.
 *
 * What it promises: it exports only the symbols of these libraries and the softdev_ functions. None has a
 * version, so each satisfies references to every version.
 * What it calls: every folder. Who may call it: the program only.
 * Threads: any. No lock held.
 */
#ifndef SOFTDEV_PRELOAD_H
#define SOFTDEV_PRELOAD_H

#include "cm/cm.h"
#include "verbs/verbs.h"

#endif
