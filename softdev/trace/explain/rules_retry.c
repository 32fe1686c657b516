/*
 * Rules: messages that were not acknowledged, and messages for which no receive was posted.
 */
#include <infiniband/verbs.h>
#include <string.h>

#include "trace/explain/explain.h"

/* Why the peer's queue pair did not answer, or would not have understood. */
static const char *judge_peer(const struct story *s, const struct qp *qp, const struct peer *peer, uint64_t when,
			      char *text, size_t size)
{
	const struct qp *there = peer->qp;
	const uint64_t begin = peer->story->from->header.begin_unix_ns;
	char own[TRACE_ADDRESS_BYTES], wanted[TRACE_ADDRESS_BYTES];
	const unsigned mtu = trace_mtu_bytes(qp->is.path_mtu), other = trace_mtu_bytes(there->is.path_mtu);

	if (!peer->mutual && there->rtr) {
		snprintf(text, size,
			 "the peer's QP 0x%x has QP 0x%x as its destination, and not this one: dest_qp_num is wrong "
			 "on one side",
			 there->number, there->is.dest_qpn);
		return "wrong-dest-qp";
	}
	if (!there->rtr) {
		snprintf(text, size, "the peer's QP 0x%x never left %s, and answers only from RTR on", there->number,
			 trace_state_name(there->state));
		return "peer-not-ready";
	}
	if (there->gone && begin + there->gone < when) {
		snprintf(text, size, "the peer had destroyed its QP 0x%x %.6f s before", there->number,
			 (double)(when - begin - there->gone) / 1e9);
		return "peer-gone";
	}
	if (there->failed && begin + there->failed < when) {
		snprintf(text, size, "the peer's QP 0x%x had gone to ERR %.6f s before", there->number,
			 (double)(when - begin - there->failed) / 1e9);
		return "peer-in-error";
	}
	if (qp->addressed && there->addressed && qp->address.sgid_known && there->address.sgid_known) {
		if (qp->address.gid_type != there->address.gid_type) {
			snprintf(text, size, "GID index %u is %s here, and GID index %u is %s there",
				 qp->address.sgid_index, trace_gid_type_name(qp->address.gid_type),
				 there->address.sgid_index, trace_gid_type_name(there->address.gid_type));
			return "gid-type";
		}
		if (memcmp(qp->address.dgid, there->address.sgid, 16) != 0) {
			snprintf(text, size,
				 "the destination is %s, and the peer's QP 0x%x is at %s (its GID index %u)",
				 trace_gid_text(qp->address.dgid, wanted), there->number,
				 trace_gid_text(there->address.sgid, own), there->address.sgid_index);
			return "wrong-gid";
		}
	}
	if (there->seen & IBV_QP_RQ_PSN && (qp->is.sq_psn & 0xffffff) != (there->is.rq_psn & 0xffffff)) {
		snprintf(text, size, "sq_psn is 0x%x here, and the peer expects 0x%x (its rq_psn)", qp->is.sq_psn,
			 there->is.rq_psn);
		return "psn-mismatch";
	}
	if (mtu != other) {
		snprintf(text, size, "path_mtu is %u here and %u there", mtu, other);
		return "mtu-mismatch";
	}
	if (story_died(peer->story)) {
		snprintf(text, size, "the peer's process (pid %u) has died", peer->story->from->header.pid);
		return "peer-gone";
	}
	(void)s;
	return NULL;
}

static double patience(const struct qp *qp)
{
	return qp->is.timeout ? 4.096e-6 * (double)(UINT64_C(1) << (qp->is.timeout & 31)) * (qp->is.retry_cnt + 1) : 0;
}

static bool port_is_down(const struct story *s, uint8_t number)
{
	for (size_t n = 0; n < s->device_count; n++) {
		if (s->devices[n].number == number && s->devices[n].port_down > s->devices[n].port_up)
			return true;
	}
	return false;
}

static void judge_retry(struct findings *to, const struct story *s, const struct incident *one)
{
	const struct trace_item *item = item_at(s, one->item);
	const struct qp *qp = &s->qps[one->qp];
	const char *ever = qp->sent || qp->received ? "It had worked before" : "Nothing was ever received on it";
	const uint64_t when = world_time(s, item->ns);
	const char *name = NULL;
	char text[400], address[TRACE_ADDRESS_BYTES];
	struct peer peer;

	peer_address(qp, address);
	if (port_is_down(s, qp->device)) {
		name = "port-down";
		snprintf(text, sizeof(text), "the port of this device is down (PORT_ERR came)");
	} else if (peer_find(to, s, qp, &peer)) {
		if (port_is_down(peer.story, peer.qp->device)) {
			name = "port-down";
			snprintf(text, sizeof(text), "the port of the peer's device is down");
		} else {
			name = judge_peer(s, qp, &peer, when, text, sizeof(text));
		}
		if (!name) {
			name = "unacknowledged";
			snprintf(text, sizeof(text),
				 "GIDs, path MTU and packet numbers of both ends agree: packets were lost, or the "
				 "peer was too slow for %.3f s",
				 patience(qp));
		}
	} else if (peer_admirer(to, s, qp, &peer)) {
		name = "wrong-dest-qp";
		snprintf(text, sizeof(text),
			 "no recorded queue pair has the number 0x%x, which is dest_qp_num here; QP 0x%x of pid %u "
			 "has this one as its destination",
			 qp->is.dest_qpn, peer.qp->number, peer.story->from->header.pid);
	} else if (to->story_count > 1) {
		name = qp->sent || qp->received ? "peer-gone" : "no-such-peer";
		snprintf(text, sizeof(text), "no recorded queue pair has the number 0x%x, which is dest_qp_num here%s",
			 qp->is.dest_qpn, qp->sent ? ": the peer has ended, or was not recorded" : "");
	} else {
		name = qp->sent || qp->received ? "peer-gone" : "no-answer";
		snprintf(text, sizeof(text),
			 "%s is not recorded: run it under `softdev trace`, too, and both ends are compared. Of this "
			 "end: GID index %u (%s), path MTU %u, dest_qp_num 0x%x, sq_psn 0x%x",
			 address, qp->address.sgid_index, trace_gid_type_name(qp->address.gid_type),
			 trace_mtu_bytes(qp->is.path_mtu), qp->is.dest_qpn, qp->is.sq_psn);
	}
	found(to, s, name, FAILED, item->ns, qp->object,
	      "RETRY_EXC_ERR on QP 0x%x: peer %s did not acknowledge wr_id 0x%llx within timeout %u and retry_cnt %u "
	      "(%.3f s): %s. %s.",
	      qp->number, address, (unsigned long long)item->record.done.wr_id, qp->is.timeout, qp->is.retry_cnt,
	      patience(qp), text, ever);
}

void rule_retry(struct findings *to, const struct story *s)
{
	for (size_t n = 0; n < s->incident_count; n++) {
		const struct incident *one = &s->incidents[n];
		if (one->kind == COMPLETED_BAD && item_at(s, one->item)->record.done.status == IBV_WC_RETRY_EXC_ERR)
			judge_retry(to, s, one);
	}
}

/* ---- receiver not ready ------------------------------------------------------------------------------- */

void rule_rnr(struct findings *to, const struct story *s)
{
	for (size_t n = 0; n < s->incident_count; n++) {
		const struct incident *one = &s->incidents[n];
		if (one->kind != COMPLETED_BAD || item_at(s, one->item)->record.done.status != IBV_WC_RNR_RETRY_EXC_ERR)
			continue;
		const struct trace_item *item = item_at(s, one->item);
		const struct qp *qp = &s->qps[one->qp];
		char there[200] = "The peer was not recorded.";
		struct peer peer;
		const bool known = peer_find(to, s, qp, &peer);
		if (known && peer.qp == qp) {
			found(to, s, "wrong-dest-qp", FAILED, item->ns, qp->object,
			      "RNR_RETRY_EXC_ERR on QP 0x%x: dest_qp_num is its own number, so that it sends to "
			      "itself, and it has no receive for wr_id 0x%llx.",
			      qp->number, (unsigned long long)item->record.done.wr_id);
			continue;
		}
		if (known && peer.qp->caps.srq)
			snprintf(there, sizeof(there),
				 "The peer's QP 0x%x takes receives from a shared queue, which ran empty.",
				 peer.qp->number);
		else if (known)
			snprintf(there, sizeof(there),
				 "%llu receives were posted to the peer's QP 0x%x, and %llu consumed.",
				 (unsigned long long)peer.qp->recv_posts, peer.qp->number,
				 (unsigned long long)peer.qp->received);
		found(to, s, "no-receives", FAILED, item->ns, qp->object,
		      "RNR_RETRY_EXC_ERR on QP 0x%x: the peer had no receive posted for wr_id 0x%llx, and rnr_retry "
		      "is %u%s. %s Post receives before the peer may send, and enough of them; rnr_retry 7 waits for "
		      "ever.",
		      qp->number, (unsigned long long)item->record.done.wr_id, qp->is.rnr_retry,
		      qp->is.rnr_retry ? "" : ", so that it was tried once", there);
	}
}
