/*
 * Differentiated services of outgoing packets: traffic classes that users and the environment choose.
 */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "roce/internal.h"

enum { DSCP_MOST = 63 };

static uint8_t usual = ROCE_DSCP, notifications = ROCE_CNP_DSCP;

static void read_one(const char *name, uint8_t *to)
{
	const char *said = getenv(name);
	char *end;

	if (!said || !*said)
		return;
	errno = 0;
	const long value = strtol(said, &end, 10);
	if (errno || *end || value < 0 || value > DSCP_MOST)
		fprintf(stderr, "softdev: %s=\"%s\" is not understood, so it is %u; wanted: a number from 0 to %u\n",
			name, said, *to, DSCP_MOST);
	else
		*to = (uint8_t)value;
}

static void read_environment(void)
{
	read_one("SOFTDEV_DSCP", &usual);
	read_one("SOFTDEV_CNP_DSCP", &notifications);
}

static uint8_t marked_instead_of_dropped(uint8_t dscp)
{
	return (uint8_t)(dscp << 2 | ROCE_ECT);
}

uint8_t soft_roce_class(uint8_t wanted)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	const uint8_t dscp = wanted >> 2;

	pthread_once(&once, read_environment);
	return marked_instead_of_dropped(dscp ? dscp : usual);
}

uint8_t soft_roce_cnp_class(void)
{
	soft_roce_class(0);
	return marked_instead_of_dropped(notifications);
}
