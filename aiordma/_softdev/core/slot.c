/*
 * The slot of this process among those of its user on this host: the high bits of its QP numbers. The owner of a slot
 * listens on a Unix socket whose abstract name contains user and slot.
 *
 * Any process may bind any abstract name: a name that another user has taken is skipped.
 */
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "core/internal.h"

unsigned soft_slot_address(uint32_t slot, struct sockaddr_un *address)
{
	memset(address, 0, sizeof(*address));
	address->sun_family = AF_UNIX;
	int n = snprintf(address->sun_path + 1, sizeof(address->sun_path) - 1, "aiordma-soft.%u.%u", (unsigned)getuid(),
			 slot);
	return (unsigned)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
}

int soft_slot_claim(void)
{
	struct sockaddr_un address;
	/* Processes start the search at different slots, so the slot of a dead process is not reused at once. */
	uint32_t first = (uint32_t)getpid();
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	if (fd < 0)
		return errno;
	for (uint32_t n = 0; n < SOFT_MAX_SLOT; n++) {
		uint32_t slot = (first + n) % SOFT_MAX_SLOT;
		socklen_t length = soft_slot_address(slot, &address);

		if (!slot || bind(fd, (struct sockaddr *)&address, length))
			continue;
		if (listen(fd, 1024))
			break;
		soft_proc.slot = slot;
		soft_proc.listen_fd = fd;
		return 0;
	}
	close(fd);
	return EADDRNOTAVAIL;
}

bool soft_slot_taken(uint32_t slot)
{
	struct sockaddr_un address;
	const socklen_t length = soft_slot_address(slot, &address);
	const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	/* A concurrent search for a slot takes the next one. */
	const bool taken = fd < 0 || bind(fd, (struct sockaddr *)&address, length);

	if (fd >= 0)
		close(fd);
	return taken;
}
