/* A queue pair whose peer dies is reset and connected to another peer as soon as its first completion in error shows:
 * what the device still had to do about the death does not reach its next life. */
#include "tests/harness.h"

#include <poll.h>
#include <stdlib.h>
#include <sys/ptrace.h>

#include "core/objects.h"

enum { LIVES = 200, OTHERS = 512 };

/* Takes one message, so what is sent to it then is outstanding until it dies. */
static void receive_once(int fd, void *argument)
{
    struct end end;
    char told;

    (void)argument;
    take(fd, &told, 1); /* its turn */
    end_open(&end, &(struct end_options){0});
    struct address peer = exchange(fd, &end);
    end_connect(&end, &peer, NULL);
    post_recv(&end, 1, 0, 64);
    give(fd, "c", 1);
    take(fd, &told, 1); /* never comes */
}

static void lose_a_peer(struct end *end, struct child *child)
{
    struct ibv_wc wc;
    char told;

    give(child->fd, "t", 1);
    struct address peer = exchange(child->fd, end);
    end_connect(end, &peer, NULL);
    take(child->fd, &told, 1);
    do_send(end, 64, 64);
    post_recv(end, 1, 0, 64);
    post_send(end, 2, 64, 64, IBV_SEND_SIGNALED);
    child_kill(child);
    do
        wc = next_wc(end->send_cq);
    while (wc.status == IBV_WC_SUCCESS);
}

/* The same, in the slot of that queue pair's process, which is gone. */
static void receive_in_its_slot(int fd, void *argument)
{
    struct end end;
    uint32_t qpn;

    (void)argument;

    take(fd, &qpn, sizeof qpn);
    for (;; end_close(&end)) { /* the device draws one at random */
        end_open(&end, &(struct end_options){0});
        if (end.qp->qp_num >> SOFT_QPN_INDEX_BITS == qpn >> SOFT_QPN_INDEX_BITS)
            break;
    }
    struct address peer = exchange(fd, &end);
    end_connect(&end, &peer, NULL);
    post_recv(&end, 1, 0, 64);
    give(fd, "c", 1);
    take(fd, &qpn, 1); /* never comes */
}

static void the_next_life_begins_anew(void)
{
    struct ibv_qp *others[OTHERS];
    struct ibv_qp_init_attr attr = {.qp_type = IBV_QPT_RC, .cap = {1, 1, 1, 1, 0}};
    struct end end, next, store;
    static struct child children[LIVES];

    /* Before the device has a thread: a child could inherit ASan's lock of memory from it, which would stay locked. */
    for (int life = 0; life < LIVES; life++)
        children[life] = child_start(receive_once, NULL);
    end_open(&end, &(struct end_options){0});
    end_open(&next, &(struct end_options){.context = end.context});
    end_open(&store, &(struct end_options){.context = end.context});
    /* The device looks at all of them before it does what the first one's loss asks for. */
    attr.send_cq = attr.recv_cq = store.send_cq;
    for (int i = 0; i < OTHERS; i++)
        CHECK(others[i] = ibv_create_qp(store.pd, &attr));
    for (int life = 0; life < LIVES; life++) {
        lose_a_peer(&end, &children[life]);
        OK(ibv_modify_qp(end.qp, &(struct ibv_qp_attr){.qp_state = IBV_QPS_RESET}, IBV_QP_STATE));
        pair_connect(&end, &next, NULL);
        poll(NULL, 0, 2); /* what is left of the last life comes now */
        CHECK_EQ(end_state(&end), IBV_QPS_RTS);
        post_recv(&next, 5, 0, 64);
        do_send(&end, 0, 64);
        expect_wc(next.recv_cq, 5, IBV_WC_SUCCESS);
        post_recv(&end, 6, 0, 64);
        do_send(&next, 0, 64);
        expect_wc(end.recv_cq, 6, IBV_WC_SUCCESS);
        for (struct end *each = &end; each; each = each == &end ? &next : NULL)
            OK(ibv_modify_qp(each->qp, &(struct ibv_qp_attr){.qp_state = IBV_QPS_RESET}, IBV_QP_STATE));
    }
    for (int i = 0; i < OTHERS; i++)
        OK(ibv_destroy_qp(others[i]));
    end_close(&next);
    end_close(&store);
    end_close(&end);
}

/* ---- a slot's next process ---- */

/* Speaks with one process, and then with the one that has its slot after it. */
static void speak_with_two(int fd, void *argument)
{
    struct end end, next;
    struct address peer;

    (void)argument;
    end_open(&end, &(struct end_options){0});
    end_open(&next, &(struct end_options){.context = end.context});
    peer = exchange(fd, &end);
    end_connect(&end, &peer, NULL);
    do_send(&end, 0, 64);
    rendezvous(fd);
    rendezvous(fd); /* the progress thread stands still */
    end_connect(&next, &peer, NULL);
    OK(ibv_modify_qp(next.qp, &(struct ibv_qp_attr){.qp_state = IBV_QPS_RESET}, IBV_QP_STATE));
    rendezvous(fd); /* it has been woken, and will hear of the first one's end later */
    peer = exchange(fd, &next);
    end_connect(&next, &peer, NULL);
    post_send(&next, 2, 0, 64, IBV_SEND_SIGNALED);
    rendezvous(fd);
    expect_wc(next.send_cq, 2, IBV_WC_SUCCESS);
    rendezvous(fd);
    end_close(&next);
    end_close(&end);
}

static struct address relay(int to, int from)
{
    struct address address;

    take(from, &address, sizeof address);
    give(to, &address, sizeof address);
    return address;
}

/* What is asked by a link whose process is gone already is asked of the process that has the slot then. */
static void a_slot_has_a_next_process(void)
{
#ifdef __SANITIZE_THREAD__ /* a thousand devices are opened until one gets the slot: half a minute there */
    return;
#endif
    if (!can_stop_threads())
        return;
    struct child first = child_start(receive_once, NULL), second = child_start(receive_in_its_slot, NULL),
                 speaker = child_start(speak_with_two, NULL);
    char told;

    give(first.fd, "t", 1);
    struct address gone = relay(speaker.fd, first.fd);
    relay(first.fd, speaker.fd);
    take(first.fd, &told, 1);
    rendezvous(speaker.fd);
    const int thread = stop_progress(speaker.pid);
    rendezvous(speaker.fd);
    rendezvous(speaker.fd);
    child_kill(&first);
    give(second.fd, &gone.qpn, sizeof gone.qpn);
    relay(speaker.fd, second.fd);
    relay(second.fd, speaker.fd);
    take(second.fd, &told, 1);
    rendezvous(speaker.fd);
    CHECK(!ptrace(PTRACE_DETACH, thread, NULL, NULL));
    rendezvous(speaker.fd);
    child_join(&speaker);
    child_kill(&second);
}

TEST_MAIN(TEST(the_next_life_begins_anew), TEST(a_slot_has_a_next_process))
