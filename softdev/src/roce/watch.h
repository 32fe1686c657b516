/*
 * Whether the progress thread or polls receive packets. The kernel wakes the progress thread for packets, except while
 * a program polls all the time: then packets are not watched for, and the progress thread only checks now and then
 * whether the program still polls.
 *
 * No thread may sleep while packets are not watched for. A thread that goes to sleep calls roce_watch_sleeps() after
 * its last poll. A thread that stops the watch because of polls checks afterwards whether a sleeper was added since it
 * counted them:
 *   Sleeper: count itself (seq_cst)  ; read whether packets are watched for, and if not, watch
 *   Stopper: read the count ; see polls ; stop the watch (seq_cst) ; read the count again, and if it rose, watch
 * Either the sleeper sees that the watch has stopped, or the stopper sees the sleeper.
 */
#ifndef SOFTDEV_ROCE_WATCH_H
#define SOFTDEV_ROCE_WATCH_H

#include <stdbool.h>

/* ---- polls ------------------------------------------------------------------------------------------ */

/* A poll begins; another thread was already looking; the poll has looked. */
void roce_watch_poll(void);
void roce_watch_kept_out(void);
void roce_watch_looked(bool found);

/* A thread goes to sleep. True: packets were not watched for. They are now, unless memory ran out. */
bool roce_watch_sleeps(void);

/* ---- the progress thread ---------------------------------------------------------------------------- */

/* The progress thread has looked. True: it kept polls out time and again, and now leaves packets to them. */
bool roce_watch_hand_over(void);
/*
 * The progress thread finds a poll looking. True: packets are left to the program, as it polls. Should it sleep without
 * asking for an event again, the timer watches for it.
 */
bool roce_watch_leave(void);
/* A program has polled since it last asked for an event, so it looks itself. */
bool roce_watch_program_awake(void);
/* A timer went off while packets are not watched for. True: watch again, as for a thread that goes to sleep. */
bool roce_watch_ask(void);

/* ---- any thread ------------------------------------------------------------------------------------- */

/* Whether packets are not watched for. */
bool roce_watch_stopped(void);
/* Request a call of roce_watch_ask() after a while. */
void roce_watch_ask_later(void);
void roce_watch_after_fork(void);

#endif
