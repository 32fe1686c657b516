/*
 * Under the recorder: an extended completion queue at the address of one that is destroyed, before the call has returned
 * that destroys it. Another thread would make it; here it is made in that call, when the device is done.
 */
#include "tests/harness.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

extern void (*trace_between_ended)(void);
extern void __libc_free(void *memory);

static struct ibv_context *context;
static struct ibv_cq_ex *second;

/* ---- one place in memory that is used again at once ---- */

static _Alignas(64) char place[8192];
static bool is_used, is_wanted;

void *aligned_alloc(size_t alignment, size_t size)
{
    void *memory;

    if (is_wanted && !is_used && size <= sizeof place) {
        is_used = true;
        return place;
    }
    return posix_memalign(&memory, alignment, size) ? NULL : memory;
}

void free(void *memory)
{
    if (memory == place)
        is_used = false;
    else
        __libc_free(memory);
}

/* ---- the test ---- */

static struct ibv_cq_ex *make(void)
{
    struct ibv_cq_init_attr_ex attr = {.cqe = 16};

    is_wanted = true;
    struct ibv_cq_ex *cq = ibv_create_cq_ex(context, &attr);
    is_wanted = false;
    CHECK((void *)cq == (void *)place);
    return cq;
}

static void make_second(void)
{
    trace_between_ended = NULL;
    second = make();
}

static void queues(void)
{
    struct ibv_poll_cq_attr none = {0};
    char directory[] = "/tmp/softdev-again-XXXXXX";

    CHECK(mkdtemp(directory) && !setenv("SOFTDEV_TRACE", directory, 1));
    context = test_open();
    struct ibv_cq_ex *first = make();
    CHECK_EQ(ibv_start_poll(first, &none), ENOENT);
    trace_between_ended = make_second;
    OK(ibv_destroy_cq(ibv_cq_ex_to_cq(first)));
    CHECK_EQ(ibv_start_poll(second, &none), ENOENT);
    OK(ibv_destroy_cq(ibv_cq_ex_to_cq(second)));
    OK(ibv_close_device(context));
    /* The recording, which goes on without a name. */
    char name[64];
    snprintf(name, sizeof name, "%s/%d-0.rec", directory, (int)getpid());
    CHECK(!unlink(name) && !rmdir(directory));
}

TEST_MAIN(TEST(queues))
