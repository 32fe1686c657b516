/*
 * The work requests of stories as the RoCEv2 packets that they stand for, for Wireshark.
 */
#ifndef SOFTDEV_TRACE_PACKETS_H
#define SOFTDEV_TRACE_PACKETS_H

#include "trace/explain/explain.h"

/*
 * A pcapng file. alone: queue pairs whose senders are in none of the stories; of what these sent, it has only messages that
 * completed a receive. False: no memory, and not all of them are in it.
 */
bool packets(FILE *to, const struct story *stories, size_t count, size_t *alone);

#endif
