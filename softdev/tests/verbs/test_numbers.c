/* Numbers of queue pairs and keys of memory: nobody can guess the next one, and none comes again soon. */
#include <stdlib.h>
#include <string.h>

#include "tests/harness.h"

enum { MANY = 64, SOON_QP = 1000, SOON_KEY = 1000 };

static struct ibv_qp *make_qp(const struct end *end)
{
    struct ibv_qp_init_attr attr = {.send_cq = end->send_cq,
                                    .recv_cq = end->recv_cq,
                                    .cap = {.max_send_wr = 1, .max_recv_wr = 1},
                                    .qp_type = IBV_QPT_RC};
    struct ibv_qp *qp = ibv_create_qp(end->pd, &attr);

    CHECK(qp);
    return qp;
}

/* How many follow from the one before, given that a number is an index and perhaps a counter. */
static int guessable(const uint32_t *numbers, uint32_t step)
{
    int found = 0;

    for (int i = 1; i < MANY; i++)
        found += numbers[i] - numbers[i - 1] <= 2 * step;
    return found;
}

static int compare(const void *a, const void *b)
{
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

    return x < y ? -1 : x > y;
}

static void check_unique(uint32_t *numbers, size_t count)
{
    qsort(numbers, count, sizeof *numbers, compare);
    for (size_t i = 1; i < count; i++)
        CHECK(numbers[i] != numbers[i - 1]);
}

static void cannot_be_guessed(void)
{
    uint32_t qpns[MANY], keys[MANY];
    struct ibv_qp *qps[MANY];
    struct ibv_mr *mrs[MANY];
    struct end end;

    end_open(&end, &(struct end_options){.size = 4096});
    for (int i = 0; i < MANY; i++) {
        qps[i] = make_qp(&end);
        qpns[i] = qps[i]->qp_num;
        mrs[i] = ibv_reg_mr(end.pd, end.buf, 64, ACCESS_ALL);
        CHECK(mrs[i]);
        keys[i] = mrs[i]->rkey;
    }
    CHECK(guessable(qpns, 1) < MANY / 4);
    CHECK(guessable(keys, 0x200) < MANY / 4);
    check_unique(qpns, MANY);
    check_unique(keys, MANY);
    for (int i = 0; i < MANY; i++) {
        OK(ibv_destroy_qp(qps[i]));
        OK(ibv_dereg_mr(mrs[i]));
    }
    end_close(&end);
}

static void first_numbers(int fd, void *unused)
{
    struct end end;

    (void)unused;
    end_open(&end, &(struct end_options){.size = 4096});
    const struct address first = end_address(&end);
    give(fd, &first, sizeof first);
    end_close(&end);
}

/* Nor do they follow from what the process is, or from how much it has done. */
static void processes_differ(void)
{
    enum { PROCESSES = 16 };
    uint32_t qpns[PROCESSES], keys[PROCESSES], slots[PROCESSES];
    int next = 0;

    for (int i = 0; i < PROCESSES; i++) {
        struct child child = child_start(first_numbers, NULL);
        struct address first;

        take(child.fd, &first, sizeof first);
        child_join(&child);
        slots[i] = first.qpn >> 14;
        qpns[i] = first.qpn & 0x3fff;
        keys[i] = first.rkey;
        next += i && slots[i] - slots[i - 1] <= 2;
    }
    CHECK(next < PROCESSES / 2);
    qsort(qpns, PROCESSES, sizeof *qpns, compare);
    CHECK(qpns[PROCESSES - 1] - qpns[0] > 1000);
    check_unique(keys, PROCESSES);
}

static void none_comes_again_soon(void)
{
    static uint32_t qpns[SOON_QP], places[SOON_KEY];
    struct end end;

    end_open(&end, &(struct end_options){.size = 4096});
    for (int i = 0; i < SOON_QP; i++) {
        struct ibv_qp *qp = make_qp(&end);
        qpns[i] = qp->qp_num;
        OK(ibv_destroy_qp(qp));
    }
    for (int i = 0; i < SOON_KEY; i++) {
        struct ibv_mr *mr = ibv_reg_mr(end.pd, end.buf, 64, ACCESS_ALL);
        CHECK(mr);
        places[i] = mr->rkey >> 8 & 0xffff;
        OK(ibv_dereg_mr(mr));
    }
    check_unique(qpns, SOON_QP);
    check_unique(places, SOON_KEY);
    end_close(&end);
}

TEST_MAIN(TEST(cannot_be_guessed), TEST(processes_differ), TEST(none_comes_again_soon))
