/*
 * Who finds packets: the progress thread, which the kernel wakes for them, or polls. While a program polls all the time
 * packets are not watched for: nobody needs to be woken, only to ask now and then whether it still polls.
 *
 * Nobody may sleep unwatched. A thread that goes to sleep says so (roce_watch_sleeps()) behind its last poll; whoever
 * stops the watch on account of polls looks afterwards whether somebody went to sleep since he counted them:
 *   Sleeper:   count itself (seq_cst)   ; read whether packets are watched for, and if not, watch
 *   Who stops: read the count ; see polls ; stop the watch (seq_cst) ; read the count again, and if it rose, watch
 * Either the sleeper sees that the watch has stopped, or who stopped it sees the sleeper.
 */
#ifndef AIORDMA_ROCE_WATCH_H
#define AIORDMA_ROCE_WATCH_H

#include <stdbool.h>

/* ---- polls ------------------------------------------------------------------------------------------ */

/* One begins; it found that somebody else is looking; it has looked. */
void roce_watch_poll(void);
void roce_watch_kept_out(void);
void roce_watch_looked(bool found);

/* A thread goes to sleep. True: packets were not watched for. They are now, or there is no memory for it. */
bool roce_watch_sleeps(void);

/* ---- the progress thread ---------------------------------------------------------------------------- */

/* It has looked. True: polls were kept out by that, time and again, and it leaves packets to them. */
bool roce_watch_hand_over(void);
/* A timer went off while packets are not watched for. True: watch again, as for one that goes to sleep. */
bool roce_watch_ask(void);

/* ---- anybody ---------------------------------------------------------------------------------------- */

/* Packets are not watched for. */
bool roce_watch_stopped(void);
/* roce_watch_ask() is wanted in a while. */
void roce_watch_ask_later(void);
void roce_watch_after_fork(void);

#endif
