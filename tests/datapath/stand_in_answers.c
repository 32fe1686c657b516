/*
 * What the thread that stands in for the event loop answers to each message of its standard input: a length of two
 * bytes, then so many. A line for each: the answer in hex, or "-". The messages are in memory of just their length.
 */
#include "aiordma/datapath/_stand_in.h"

#include <stdio.h>

int main(void)
{
	unsigned char head[2], answer[AIO_STAND_IN_BYTES];

	while (fread(head, 2, 1, stdin) == 1) {
		uint32_t length = head[0] | (uint32_t)head[1] << 8;
		unsigned char *message = malloc(length);
		if (!message || length < AIO_STAND_IN_BYTES || fread(message, length, 1, stdin) != 1)
			return 1;
		if (aio_stand_in_answer(message, length, answer)) {
			for (int i = 0; i < AIO_STAND_IN_BYTES; i++)
				printf("%02x", answer[i]);
			putchar('\n');
		} else {
			puts("-");
		}
		free(message);
	}
	return 0;
}
