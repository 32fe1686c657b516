/*
 * Loading the real libibverbs on first use.
 */
#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
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
	real_library = soft_real_library("libibverbs");
}

/* Whether the device was loaded as libibverbs.so.1; then the directory before that name. */
static bool is_dropin(char directory[PATH_MAX])
{
	Dl_info own;
	const char *name = dladdr(&real_once, &own) ? strrchr(own.dli_fname, '/') : NULL;

	if (!name || strncmp(name, "/libibverbs.so", strlen("/libibverbs.so")) != 0)
		return false;
	snprintf(directory, PATH_MAX, "%.*s", (int)(name - own.dli_fname), own.dli_fname);
	return true;
}

void *soft_real_library(const char *name)
{
	char directory[PATH_MAX], path[PATH_MAX + 64];
	void *found;

	if (is_dropin(directory))
		snprintf(path, sizeof(path), "%s/%s-real.so.1", directory, name);
	else
		snprintf(path, sizeof(path), "%s.so.1", name);
	found = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
	return found ? found : dlopen(path, RTLD_NOW | RTLD_LOCAL);
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
