/* A queue pair whose peer dies is reset and connected to another peer as soon as its first completion in error shows:
 * what the device still had to do about the death does not reach its next life. */
#include "tests/harness.h"

#include <poll.h>
#include <stdlib.h>

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

TEST_MAIN(TEST(the_next_life_begins_anew))
