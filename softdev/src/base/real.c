/*
 * Loading the real libibverbs on first use.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <unistd.h>

#include "base/base.h"

static pthread_once_t real_once = PTHREAD_ONCE_INIT;
static void *real_library;

/*
 * Not from a constructor. Loading the distribution's library by its SONAME before the program has loaded its own (a
 * pyverbs wheel may bundle one) would bind the program to the wrong library.
 */
static void open_real(void)
{
	real_library = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_NOLOAD);
	if (!real_library)
		real_library = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);
}

/* The class is there from the moment that the kernel has RDMA at all. Without sysfs, only the real library can tell. */
bool soft_kernel_has_rdma(void)
{
	return !access("/sys/class/infiniband", F_OK) || access("/sys/class", F_OK);
}

void *soft_real_symbol(const char *name, const char *version)
{
	pthread_once(&real_once, open_real);
	return real_library ? dlvsym(real_library, name, version) : NULL;
}
