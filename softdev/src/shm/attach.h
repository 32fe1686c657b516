/*
 * How lanes and mappings are made over a link: the functions behind the dispatch of messages (attach.c). Call all of
 * them from the progress thread only. A function that handles a message and returns false wants the link broken.
 */
#ifndef SOFTDEV_ATTACH_H
#define SOFTDEV_ATTACH_H

#include "shm/unix_link.h"

/* ---- attach_request.c: the requester ---------------------------------------------------------------- */

/* Asks for the lane that the QP wants; retried by the timer if its peer's process is not there yet. */
void soft_attach_ask(struct soft_qp *qp, struct soft_after *after);
/* ATTACHED. Takes the fds that it sets to -1. */
bool soft_attach_answer(struct soft_link *link, const struct soft_message *msg, int *fds, struct soft_after *after);
/* ABSENT: the destination is not ready. */
void soft_attach_absent(const struct soft_message *msg);
/* No lane for this attempt: without descriptors or memory here, or (peer) there. */
void soft_attach_refused(struct soft_qp *qp, const struct soft_message *msg, int err, bool peer,
			 struct soft_after *after);
/* The requester cannot use its lane: the responder drops its end. */
void soft_attach_give_back(struct soft_link *link, const struct soft_message *msg, int err, struct soft_after *after);
/* The QPs that wait for a lane over this link get none. */
void soft_attach_fail(const struct soft_link *link, int err, bool peer, struct soft_after *after);

/* ---- attach_grant.c: the responder ------------------------------------------------------------------ */

/* ATTACH. */
bool soft_attach_question(struct soft_link *link, const struct soft_message *msg, int *fds, struct soft_after *after);
/* The QP is ready: requests that came early can be granted now. */
void soft_attach_grant_early(uint32_t qpn);
/* Refuses an ATTACH for want of something here. */
void soft_attach_refuse(struct soft_link *link, const struct soft_message *msg, int err);
/* Says that an ATTACH or ATTACHED is void. */
void soft_attach_void(struct soft_link *link, const struct soft_message *msg, int err);

/* ---- resolve.c: memory ------------------------------------------------------------------------------ */

/* Asks about the keys that the QP's requests could not open. */
void soft_resolve_ask(struct soft_qp *qp);
/* RESOLVE. */
bool soft_resolve_question(struct soft_link *link, const struct soft_message *msg);
/* RESOLVED; fd: of the slab. */
bool soft_resolve_answer(struct soft_link *link, const struct soft_message *msg, int fd);
void soft_resolve_slab_gone(struct soft_link *link, uint64_t slab);

#endif
