/*
 * UCX uses a device only if it can open the character device /dev/infiniband/NAME, which the software device has not.
 * The function that looks is exported from libuct_ib (seen in UCX 1.12 and later; 1.10 does not look), and UCX calls it by
 * its name: this definition lies in front of it. No call of libc needs to be interposed.
 */
#include <dlfcn.h>

#include "preload/preload.h"

int uct_ib_device_is_accessible(struct ibv_device *device);

/* UCX's own, from the library that calls: it is loaded where dlsym(RTLD_NEXT) does not look. */
static __typeof__(&uct_ib_device_is_accessible) real_of(const void *caller)
{
	__typeof__(&uct_ib_device_is_accessible) real = NULL;
	Dl_info info;
	void *library =
		dladdr(caller, &info) && info.dli_fname ? dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD) : NULL;

	if (!library)
		return NULL;
	real = (__typeof__(real))dlsym(library, "uct_ib_device_is_accessible");
	dlclose(library); /* the caller keeps it loaded */
	return real == uct_ib_device_is_accessible ? NULL : real;
}

SOFT_EXPORT int uct_ib_device_is_accessible(struct ibv_device *device)
{
	if (soft_is_device(device))
		return device->transport_type == IBV_TRANSPORT_IB;
	__typeof__(&uct_ib_device_is_accessible) real = real_of(__builtin_return_address(0));
	return real ? real(device) : 0;
}
