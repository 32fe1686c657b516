/* Stands between the recorder and the device in test_again.c: says when the device has ended a completion queue. */
#include <dlfcn.h>
#include <infiniband/verbs.h>
#include <stdint.h>

void (*trace_between_ended)(void);

int ibv_destroy_cq(struct ibv_cq *cq)
{
    int (*next)(struct ibv_cq *) = (int (*)(struct ibv_cq *))(uintptr_t)dlsym(RTLD_NEXT, "ibv_destroy_cq");
    const int error = next(cq);

    if (!error && trace_between_ended)
        trace_between_ended();
    return error;
}
