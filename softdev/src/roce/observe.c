/*
 * Packet counters and captures.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "roce/internal.h"
#include "roce/capture.h"

struct roce_counters soft_roce_counters;

/* ---- counters --------------------------------------------------------------------------------------- */

SOFT_EXPORT uint64_t softdev_wire_count(const char *name)
{
	const struct {
		const char *name;
		_Atomic(uint64_t) *value;
	} all[] = {
		{ "sent", &soft_roce_counters.sent },           { "runs", &soft_roce_counters.runs },
		{ "received", &soft_roce_counters.received },   { "send_failed", &soft_roce_counters.send_failed },
		{ "malformed", &soft_roce_counters.malformed }, { "bad_icrc", &soft_roce_counters.bad_icrc },
		{ "no_qp", &soft_roce_counters.no_qp },         { "wrong_peer", &soft_roce_counters.wrong_peer },
		{ "forwarded", &soft_roce_counters.forwarded }, { "marked", &soft_roce_counters.marked },
		{ "cnps_sent", &soft_roce_counters.cnps_sent }, { "cnps_received", &soft_roce_counters.cnps_received },
		{ "paced", &soft_roce_counters.paced },
	};

	for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++)
		if (!strcmp(all[i].name, name))
			return atomic_load(all[i].value);
	return UINT64_MAX;
}

/* ---- captures --------------------------------------------------------------------------------------- */

static struct roce_capture *_Atomic capture;

SOFT_EXPORT int softdev_capture(const char *path)
{
	struct roce_capture *next = path && *path ? roce_capture_open(path) : NULL;

	if (!next && path && *path)
		return errno;
	/* Other threads may still use the previous capture: it is closed when the process ends. */
	atomic_store(&capture, next);
	return 0;
}

void soft_roce_capture_read(void)
{
	const char *path = getenv("SOFTDEV_CAPTURE");
	char name[4096];

	/* Processes that share an environment must not share the file: "%" stands for the process id. */
	if (!path || !*path)
		return;
	const char *mark = strchr(path, '%');
	if (mark)
		snprintf(name, sizeof(name), "%.*s%d%s", (int)(mark - path), path, (int)getpid(), mark + 1);
	else
		snprintf(name, sizeof(name), "%s", path);
	if (softdev_capture(name))
		fprintf(stderr,
			"softdev: packets are not captured: SOFTDEV_CAPTURE names %s, and opening it failed: %s\n",
			name, strerror(errno));
}

static void write_packet(struct roce_capture *to, const struct roce_capture_origin *origin, const uint8_t *bytes,
			 size_t size)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	roce_capture_packet(to, origin, (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec, bytes, size);
}

void soft_roce_capture(const struct roce_path *path, uint8_t tos, uint16_t id, const uint8_t *bytes, size_t size)
{
	struct roce_capture *to = atomic_load_explicit(&capture, memory_order_acquire);

	if (soft_unlikely(to))
		write_packet(to, &(struct roce_capture_origin){ .path = path, .tos = tos, .ip.id = id }, bytes, size);
}

void soft_roce_capture_inbound(const struct roce_inbound *in)
{
	struct roce_capture *to = atomic_load_explicit(&capture, memory_order_acquire);
	struct roce_capture_origin origin = { .path = &in->path, .tos = in->tos, .inbound = true };

	if (soft_likely(!to))
		return;
	/* No header makes the ICRC right, or the packet is too short: recorded with a header that does not match. */
	if (in->size < ROCE_ICRC || !roce_icrc_check(&in->path, in->bytes, in->size, in->place, &origin.ip))
		origin.ip = (struct roce_ipv4){ 0 };
	write_packet(to, &origin, in->bytes, in->size);
}
