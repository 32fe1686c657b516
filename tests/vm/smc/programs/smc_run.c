/*
 * What smc_run preloads, for programs of tests: their TCP sockets are the kernel's SMC sockets. smc_run is in no package
 * of Debian 12.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <netinet/in.h>
#include <sys/socket.h>

#ifndef AF_SMC
#define AF_SMC 43
#endif

int socket(int domain, int type, int protocol)
{
	int (*next)(int, int, int);

	*(void **)&next = dlsym(RTLD_NEXT, "socket");
	if (domain == AF_INET && (type & 0xf) == SOCK_STREAM && (!protocol || protocol == IPPROTO_TCP))
		return next(AF_SMC, type, 0);
	return next(domain, type, protocol);
}
