/* A client without a C library to preload: IPPROTO_SMC. LOCAL HOST PORT BYTES; it checks the echo. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#ifndef IPPROTO_SMC
#define IPPROTO_SMC 256
#endif
#define PIECE 1000

static int fail(const char *what)
{
	perror(what);
	return 1;
}

int main(int argc, char **argv)
{
	struct sockaddr_in local = { .sin_family = AF_INET }, to = { .sin_family = AF_INET };
	unsigned char data[PIECE], got[PIECE];

	if (argc != 5 || inet_pton(AF_INET, argv[1], &local.sin_addr) != 1 ||
	    inet_pton(AF_INET, argv[2], &to.sin_addr) != 1)
		return 2;
	to.sin_port = htons((unsigned short)atoi(argv[3]));
	int connection = socket(AF_INET, SOCK_STREAM, IPPROTO_SMC);
	if (connection < 0 || bind(connection, (struct sockaddr *)&local, sizeof(local)) ||
	    connect(connection, (struct sockaddr *)&to, sizeof(to)))
		return fail("IPPROTO_SMC");
	for (long left = atol(argv[4]); left > 0; left -= PIECE) {
		for (int i = 0; i < PIECE; i++)
			data[i] = (unsigned char)(left + i * 7);
		if (write(connection, data, PIECE) != PIECE)
			return fail("write");
		for (ssize_t at = 0, some; at < PIECE; at += some)
			if ((some = read(connection, got + at, (size_t)(PIECE - at))) <= 0)
				return fail("read");
		if (memcmp(data, got, PIECE))
			return fprintf(stderr, "wrong bytes\n"), 1;
	}
	close(connection);
	puts("closed");
	return 0;
}
