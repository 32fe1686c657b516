/* Memory of other processes: mapped, asked for ahead, withdrawn while it is mapped, and many keys to it. */
#include "tests/harness.h"

#include "softdev.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/uio.h>
#include <unistd.h>

static const struct end_options slab = {.size = 1 << 20, .slab = true, .inline_bytes = 4096};

/* ---- withdrawn memory ---- */

static void owner_withdraws(int fd, void *unused)
{
    struct end end;
    struct ibv_mr *second;

    (void)unused;
    end_open(&end, &slab);
    end_meet(fd, &end);
    rendezvous(fd);
    rendezvous(fd); /* the peer has written: the slab is mapped there */
    CHECK(holds(end.buf, 4096, 3));
    second = ibv_reg_mr(end.pd, end.buf, end.size, ACCESS_ALL);
    CHECK(second);
    OK(ibv_dereg_mr(end.mr));
    end.mr = second;
    memset(end.buf, 0, 4096);
    rendezvous(fd);
    rendezvous(fd); /* the peer was refused */
    for (size_t i = 0; i < 4096; i++)
        CHECK_EQ(end.buf[i], 0);
    CHECK_EQ(end_state(&end), IBV_QPS_ERR);
    end_close(&end);
}

/* After ibv_dereg_mr returns, the device refuses a peer that has the memory mapped like any other peer. */
static void dereg_revokes_a_mapping(void)
{
    struct child child = child_start(owner_withdraws, NULL);
    struct end end;

    end_open(&end, &slab);
    struct address peer = end_meet(child.fd, &end);
    rendezvous(child.fd);
    fill(end.buf, 4096, 3);
    for (int i = 0; i < 2000; i++) /* the first ones go through the ring, then the mapping exists */
        do_rdma(&end, IBV_WR_RDMA_WRITE, 0, 4096, &peer, 0);
    rendezvous(child.fd);
    rendezvous(child.fd);
    post_rdma(&end, 7, IBV_WR_RDMA_WRITE, 0, 4096, &peer, 0, IBV_SEND_SIGNALED);
    expect_wc(end.send_cq, 7, IBV_WC_REM_ACCESS_ERR);
    rendezvous(child.fd);
    child_join(&child);
    end_close(&end);
}

/* ---- a key that is expected ---- */

static void owner_of_a_slab(int fd, void *unused)
{
    struct end end;

    (void)unused;
    end_open(&end, &slab);
    end_meet(fd, &end);
    rendezvous(fd);
    end_close(&end);
}

static int slabs_mapped(void)
{
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[512];
    int found = 0;

    CHECK(maps);
    while (fgets(line, sizeof line, maps))
        found += strstr(line, "softdev-slab") != NULL;
    fclose(maps);
    return found;
}

/* The peer's memory is mapped though nothing was written yet. */
static void a_key_that_is_expected(void)
{
    struct child child = child_start(owner_of_a_slab, NULL);
    struct end end;

    end_open(&end, &slab);
    struct address peer = end_meet(child.fd, &end);
    const int own = slabs_mapped();
    while (slabs_mapped() == own) {
        softdev_expect(end.qp, peer.rkey); /* before the lane is there, it does nothing */
        usleep(1000);
    }
    softdev_expect(end.qp, peer.rkey);
    fill(end.buf, 4096, 3);
    do_rdma(&end, IBV_WR_RDMA_WRITE, 0, 4096, &peer, 0);
    CHECK_EQ(slabs_mapped(), own + 1);
    rendezvous(child.fd);
    child_join(&child);
    end_close(&end);
}

/* ---- the way to the peer's process ---- */

/* It is there as soon as that process has opened it, whatever its program does. */
static void a_way_that_is_opened_late(void)
{
    enum { LOOKS = 1000 };
    if (!can_stop_threads())
        return;
    struct child child = child_start(owner_of_a_slab, NULL);
    struct end end;

    end_open(&end, &slab);
    struct address peer = exchange(child.fd, &end);
    const int thread = stop_progress(child.pid);
    end_connect(&end, &peer, NULL);
    for (int i = 0; i < LOOKS; i++)
        CHECK(!softdev_reached(end.qp));
    CHECK(!ptrace(PTRACE_DETACH, thread, NULL, NULL));
    while (!softdev_reached(end.qp))
        usleep(100);
    rendezvous(child.fd);
    child_join(&child);
    end_close(&end);
}

/* ---- many keys ---- */

enum { KEYS = 12, REGION = 4096 };

static void owner_of_many(int fd, void *unused)
{
    struct ibv_mr *mrs[KEYS];
    uint32_t keys[KEYS];
    struct end end;

    (void)unused;
    end_open(&end, &slab);
    for (int i = 0; i < KEYS; i++) {
        mrs[i] = ibv_reg_mr(end.pd, end.buf + (ptrdiff_t)i * REGION, REGION, ACCESS_ALL);
        CHECK(mrs[i]);
        keys[i] = mrs[i]->rkey;
    }
    end_meet(fd, &end);
    give(fd, keys, sizeof keys);
    rendezvous(fd);
    for (int i = 0; i < KEYS; i++)
        OK(ibv_dereg_mr(mrs[i]));
    end_close(&end);
}

static void write_to_each(struct end *end, const struct address *peer, const uint32_t *keys)
{
    for (int i = 0; i < KEYS; i++) {
        struct address region = *peer;

        region.rkey = keys[i];
        do_rdma(end, IBV_WR_RDMA_WRITE, 0, 64, &region, (size_t)i * REGION);
    }
}

/* Keys are random, so several want the same place among those that a requester remembers. None drives another out while
 * there is room: with the owner's process stopped, WRITEs to all of them complete. */
static void many_keys_at_once(void)
{
    /* No region is a slab of its own, so the kernel copies. */
    if (kernel_lacks(process_vm_writev(getpid(), NULL, 0, NULL, 0, 0), "process_vm_writev"))
        return;
    struct child child = child_start(owner_of_many, NULL);
    uint32_t keys[KEYS];
    struct end end;

    end_open(&end, &slab);
    struct address peer = end_meet(child.fd, &end);
    take(child.fd, keys, sizeof keys);
    for (int i = 0; i < 2000; i++) /* the first ones go through the ring, then the mappings exist */
        write_to_each(&end, &peer, keys);
    CHECK(!kill(child.pid, SIGSTOP));
    write_to_each(&end, &peer, keys);
    CHECK(!kill(child.pid, SIGCONT));
    rendezvous(child.fd);
    child_join(&child);
    end_close(&end);
}

/* ---- slabs released and recreated ---- */

enum { ROUNDS = 50, SLAB = 65536 };

static void slab_owner(int fd, void *unused)
{
    struct end end;

    (void)unused;
    end_open(&end, &slab);
    end_meet(fd, &end);
    rendezvous(fd);
    for (uint32_t round = 0; round < ROUNDS; round++) {
        uint8_t *buf = softdev_alloc(end.pd, SLAB);
        CHECK(buf);
        struct ibv_mr *mr = ibv_reg_mr(end.pd, buf, SLAB, ACCESS_ALL);
        CHECK(mr);
        struct address where = {.addr = (uintptr_t)buf, .rkey = mr->rkey};
        fill(buf + 4096, 4096, round);
        give(fd, &where, sizeof(where));
        rendezvous(fd);
        CHECK(holds(buf, 4096, round + 1));
        CHECK_EQ(softdev_free(end.pd, buf, SLAB), EBUSY);
        OK(ibv_dereg_mr(mr));
        OK(softdev_free(end.pd, buf, SLAB));
    }
    rendezvous(fd);
    end_close(&end);
}

static void slabs_come_and_go(void)
{
    struct child child = child_start(slab_owner, NULL);
    struct end end;

    end_open(&end, &slab);
    end_meet(child.fd, &end);
    rendezvous(child.fd);
    for (uint32_t round = 0; round < ROUNDS; round++) {
        struct address where;

        take(child.fd, &where, sizeof(where));
        fill(end.buf, 4096, round + 1);
        do_rdma(&end, IBV_WR_RDMA_WRITE, 0, 4096, &where, 0);
        for (int i = 0; i < 50; i++)
            do_rdma(&end, IBV_WR_RDMA_READ, 8192, 4096, &where, 4096);
        CHECK(holds(end.buf + 8192, 4096, round));
        rendezvous(child.fd);
    }
    rendezvous(child.fd);
    child_join(&child);
    end_close(&end);
}

/* ---- order ---- */

/* Writes to one place land in order, whether the peer or this process carries them out. */
static void writes_keep_their_order(void)
{
    struct child child = child_start(slab_owner, NULL);
    struct end end;

    end_open(&end, &slab);
    end_meet(child.fd, &end);
    rendezvous(child.fd);
    for (uint32_t round = 0; round < ROUNDS; round++) {
        struct address where;

        take(child.fd, &where, sizeof(where));
        for (uint32_t i = 0; i < 8; i++) {
            struct ibv_sge sge = end_sge(&end, i * 4096, 4096);
            struct ibv_send_wr wr = {.wr_id = i,
                                     .sg_list = &sge,
                                     .num_sge = 1,
                                     .opcode = IBV_WR_RDMA_WRITE,
                                     .send_flags = IBV_SEND_INLINE | (i == 7 ? IBV_SEND_SIGNALED : 0),
                                     .wr.rdma = {where.addr, where.rkey}},
                               *bad;
            fill(end.buf + i * 4096, 4096, i == 7 ? round + 1 : 1000 + i);
            OK(ibv_post_send(end.qp, &wr, &bad));
        }
        expect_wc(end.send_cq, 7, IBV_WC_SUCCESS);
        rendezvous(child.fd);
    }
    rendezvous(child.fd);
    child_join(&child);
    end_close(&end);
}

TEST_MAIN(TEST(dereg_revokes_a_mapping), TEST(a_key_that_is_expected), TEST(a_way_that_is_opened_late),
          TEST(many_keys_at_once), TEST(slabs_come_and_go), TEST(writes_keep_their_order))
