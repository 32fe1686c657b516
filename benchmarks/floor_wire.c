/* What two processes in C need at least to move bytes from host to host; benchmarks/floor_wire.py compiles and runs it.
 * floor_wire receive|send tcp|runs|packets ADDRESS SECONDS: the sender prints MB/s.
 *
 * tcp: one stream. runs: datagrams of the size of a RoCEv2 packet of 1 KiB, in runs that the kernel splits and joins,
 * with nothing in them. packets: the same, and each packet is filled and gets its ICRC; the receiver checks it, and
 * copies the payload to where a peer's WRITE would put it, and from there to the program. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include "roce/icrc.h"
#include "roce/packet.h"

enum {
	PORT = 4799,
	SEGMENT = 103, /* linux/udp.h: UDP_SEGMENT, UDP_GRO */
	JOIN = 104,
	PAYLOAD = 1024,
	HEADERS = 28, /* BTH and RETH */
	PACKET = HEADERS + PAYLOAD + ROCE_ICRC,
	RUN = 60, /* packets: as many as one message may have */
	ANSWERED = 2,
	WINDOW = 8, /* runs on their way */
	MIB = 1 << 20,
	SOCKET_BYTES = 8 << 20,
	DATAGRAM = 65536,
};

static uint8_t program[MIB], ring[MIB], packets[RUN * PACKET];
static int works;

static void die(const char *what)
{
	perror(what);
	exit(1);
}

static double now(void)
{
	struct timespec at;

	clock_gettime(CLOCK_MONOTONIC, &at);
	return at.tv_sec + at.tv_nsec * 1e-9;
}

static void set(int fd, int level, int name, int value)
{
	if (setsockopt(fd, level, name, &value, sizeof(value)))
		die("setsockopt");
}

static uint32_t checked(const uint8_t *packet)
{
	return roce_crc(UINT32_MAX, packet, PACKET - ROCE_ICRC);
}

static void fill(uint64_t sent)
{
	for (size_t i = 0; i < RUN; i++) {
		uint8_t *packet = packets + i * PACKET;
		memcpy(packet + HEADERS, program + (sent + i * PAYLOAD) % MIB, PAYLOAD);
		const uint32_t icrc = checked(packet);
		memcpy(packet + PACKET - ROCE_ICRC, &icrc, sizeof(icrc));
	}
}

static void take(const uint8_t *from, size_t size, uint64_t *taken)
{
	for (; size >= PACKET; from += PACKET, size -= PACKET, *taken += PAYLOAD) {
		uint32_t icrc;
		if (!works)
			continue;
		memcpy(&icrc, from + PACKET - ROCE_ICRC, sizeof(icrc));
		if (icrc != checked(from)) {
			fputs("a packet with a wrong ICRC\n", stderr);
			exit(1);
		}
		memcpy(ring + *taken % MIB, from + HEADERS, PAYLOAD);
		memcpy(program + *taken % MIB, ring + *taken % MIB, PAYLOAD);
	}
}

static void receive_datagrams(int fd)
{
	static uint8_t in[DATAGRAM];
	struct sockaddr_in from;
	uint64_t taken = 0, answered = 0;

	set(fd, IPPROTO_UDP, JOIN, 1);
	for (;;) {
		socklen_t length = sizeof(from);
		const ssize_t n = recvfrom(fd, in, sizeof(in), 0, (struct sockaddr *)&from, &length);
		if (n < 0)
			die("recvfrom");
		take(in, (size_t)n, &taken);
		for (; taken - answered >= ANSWERED * RUN * PAYLOAD; answered += ANSWERED * RUN * PAYLOAD)
			if (sendto(fd, "", 1, 0, (struct sockaddr *)&from, length) < 0)
				die("sendto");
	}
}

static void receive_stream(int fd)
{
	if (listen(fd, 1))
		die("listen");
	fd = accept(fd, NULL, NULL);
	while (read(fd, program, sizeof(program)) > 0)
		continue;
}

static uint64_t send_stream(int fd, double until)
{
	uint64_t sent = 0;

	while (now() < until) {
		const ssize_t n = write(fd, program, sizeof(program));
		if (n < 0)
			die("write");
		sent += (uint64_t)n;
	}
	return sent;
}

static uint64_t send_datagrams(int fd, double until)
{
	const struct timeval lost = { .tv_usec = 200000 };
	uint64_t sent = 0, runs = 0, answered = 0;
	char answer;

	set(fd, IPPROTO_UDP, SEGMENT, PACKET);
	if (setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &lost, sizeof(lost)))
		die("SO_RCVTIMEO");
	for (; now() < until; sent += RUN * PAYLOAD, runs++) {
		while (runs - answered >= WINDOW)
			answered = recv(fd, &answer, 1, 0) < 0 ? runs : answered + ANSWERED;
		if (works)
			fill(sent);
		if (send(fd, packets, sizeof(packets), 0) < 0)
			die("send");
	}
	return sent;
}

int main(int argc, char **argv)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(PORT) };

	if (argc != 5 || inet_pton(AF_INET, argv[3], &address.sin_addr) != 1)
		return 2;
	const int receives = !strcmp(argv[1], "receive"), stream = !strcmp(argv[2], "tcp");
	const double seconds = atof(argv[4]);
	const int fd = socket(AF_INET, stream ? SOCK_STREAM : SOCK_DGRAM, 0);
	if (fd < 0)
		die("socket");
	works = !strcmp(argv[2], "packets");
	memset(program, 1, sizeof(program));
	set(fd, SOL_SOCKET, SO_REUSEADDR, 1);
	if (!stream) {
		set(fd, SOL_SOCKET, SO_RCVBUFFORCE, SOCKET_BYTES);
		set(fd, SOL_SOCKET, SO_SNDBUFFORCE, SOCKET_BYTES);
	}
	if (receives) {
		if (bind(fd, (struct sockaddr *)&address, sizeof(address)))
			die("bind");
		(stream ? receive_stream : receive_datagrams)(fd);
		return 0;
	}
	if (connect(fd, (struct sockaddr *)&address, sizeof(address)))
		die("connect");
	const double begun = now();
	const uint64_t sent = (stream ? send_stream : send_datagrams)(fd, begun + seconds);
	printf("%g\n", (double)sent / (now() - begun) * 1e-6);
	return 0;
}
