/*
 * Writes a pcapng file of RoCEv2 packets.
 */
#include "roce/capture.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum {
	SECTION = 0x0a0d0d0a,
	INTERFACE = 1,
	PACKET = 6,
	LINK_RAW = 101,
	OPTION_TSRESOL = 9,
	OPTION_FLAGS = 2,
	UDP = 17,
};

struct roce_capture {
	int fd;
	bool failed;
	off_t end; /* of the last whole block */
	pthread_mutex_t lock;
};

/* One write per block. Returns errno, without the signal that the kernel sends to who exceeds RLIMIT_FSIZE. */
static int write_block(const struct roce_capture *capture, struct iovec *iov, int parts, size_t total)
{
	struct rlimit limit;

	if (!getrlimit(RLIMIT_FSIZE, &limit) && (rlim_t)capture->end + total > limit.rlim_cur)
		return EFBIG;
	const ssize_t written = writev(capture->fd, iov, parts);
	return written == (ssize_t)total ? 0 : written < 0 ? errno : ENOSPC;
}

static bool put(struct roce_capture *capture, struct iovec *iov, int parts)
{
	size_t total = 0;

	for (int i = 0; i < parts; i++)
		total += iov[i].iov_len;
	const int err = write_block(capture, iov, parts, total);
	if (!err) {
		capture->end += (off_t)total;
		return true;
	}
	capture->failed = true;
	/* A full disk takes a part of a block, which readers would call damage. */
	(void)!ftruncate(capture->fd, capture->end);
	errno = err;
	return false;
}

/*
 * A new file that no other user can read: packets have keys of memory and payload in them. One that the user has left
 * there gives way, and with it who has opened it; links are not followed, and nothing else is written to.
 */
static int create(const char *path)
{
	struct stat st;

	if (!lstat(path, &st)) {
		if (!S_ISREG(st.st_mode) || st.st_uid != geteuid()) {
			errno = S_ISLNK(st.st_mode) ? ELOOP : EPERM;
			return -1;
		}
		if (unlink(path))
			return -1;
	}
	return open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
}

struct roce_capture *roce_capture_open(const char *path)
{
	uint32_t section[] = { SECTION, 28, 0x1a2b3c4d, 1, 0xffffffff, 0xffffffff, 28 };
	/* Nanoseconds: the default is microseconds. */
	uint32_t interface[] = { INTERFACE, 32, LINK_RAW, 0, OPTION_TSRESOL | 1 << 16, 9, 0, 32 };
	struct iovec iov[] = { { section, sizeof(section) }, { interface, sizeof(interface) } };
	struct roce_capture *capture = malloc(sizeof(*capture));

	if (!capture)
		return NULL;
	*capture = (struct roce_capture){ .fd = create(path) };
	pthread_mutex_init(&capture->lock, NULL);
	if (capture->fd < 0 || !put(capture, iov, 2)) {
		int error = errno;
		roce_capture_close(capture);
		errno = error;
		return NULL;
	}
	return capture;
}

void roce_capture_close(struct roce_capture *capture)
{
	if (capture->fd >= 0)
		close(capture->fd);
	pthread_mutex_destroy(&capture->lock);
	free(capture);
}

static uint32_t sum16(uint32_t sum, const uint8_t *at, size_t size)
{
	for (size_t i = 0; i + 1 < size; i += 2)
		sum += (uint32_t)at[i] << 8 | at[i + 1];
	if (size % 2)
		sum += (uint32_t)at[size - 1] << 8;
	return sum;
}

static uint16_t folded(uint32_t sum)
{
	sum = (sum & 0xffff) + (sum >> 16);
	return (uint16_t) ~((sum & 0xffff) + (sum >> 16));
}

static void put16(uint8_t *to, uint32_t value)
{
	to[0] = (uint8_t)(value >> 8);
	to[1] = (uint8_t)value;
}

/* Writes IP and UDP headers in front of the bytes. Returns their length. */
static size_t headers(const struct roce_capture_origin *origin, const uint8_t *bytes, size_t size, uint8_t to[48])
{
	const struct roce_path *path = origin->path;
	const uint8_t tos = origin->tos;
	const size_t length = 8 + size;
	uint8_t *udp;

	memset(to, 0, 48);
	if (soft_gid_is_ipv4(path->src)) {
		to[0] = 0x45;
		to[1] = tos;
		put16(to + 2, (uint32_t)(20 + length));
		put16(to + 4, origin->ip.id);
		to[6] = origin->ip.may_fragment ? 0 : 0x40;
		to[8] = 64;
		to[9] = UDP;
		memcpy(to + 12, path->src + 12, 4);
		memcpy(to + 16, path->dst + 12, 4);
		put16(to + 10, folded(sum16(0, to, 20)));
		udp = to + 20;
	} else {
		to[0] = (uint8_t)(0x60 | tos >> 4);
		to[1] = (uint8_t)(tos << 4);
		put16(to + 4, (uint32_t)length);
		to[6] = UDP;
		to[7] = 64;
		memcpy(to + 8, path->src, 16);
		memcpy(to + 24, path->dst, 16);
		udp = to + 40;
	}
	put16(udp, path->src_port);
	put16(udp + 2, path->dst_port);
	put16(udp + 4, (uint32_t)length);
	if (!soft_gid_is_ipv4(path->src)) {
		/* IPv6 requires a UDP checksum, except for tunnels. */
		uint16_t check = folded(sum16(sum16(sum16((uint32_t)length + UDP, to + 8, 32), udp, 6), bytes, size));
		put16(udp + 6, check ? check : 0xffff);
	}
	return (size_t)(udp + 8 - to);
}

bool roce_capture_packet(struct roce_capture *capture, const struct roce_capture_origin *origin, uint64_t now_ns,
			 const uint8_t *bytes, size_t size)
{
	static const uint8_t zeros[4];
	uint8_t head[48];
	const size_t hn = headers(origin, bytes, size, head);
	const uint32_t captured = (uint32_t)(hn + size), pad = -captured & 3, block = 28 + captured + pad + 16;
	uint32_t before[] = { PACKET, block, 0, (uint32_t)(now_ns >> 32), (uint32_t)now_ns, captured, captured };
	uint32_t after[] = { OPTION_FLAGS | 4 << 16, origin->inbound ? 1 : 2, 0, block };
	struct iovec iov[] = { { before, sizeof(before) },
			       { head, hn },
			       { (void *)bytes, size },
			       { (void *)zeros, pad },
			       { after, sizeof(after) } };
	bool ok;

	pthread_mutex_lock(&capture->lock);
	ok = !capture->failed;
	if (ok && !put(capture, iov, 5)) {
		fprintf(stderr, "softdev: no more packets are captured: %s\n", strerror(errno));
		ok = false;
	}
	pthread_mutex_unlock(&capture->lock);
	return ok;
}
