/* Planted mistakes of which the name of the finding is not enough: the sentence must say what kind it is. */
#include "tests/trace/mistakes.h"

#include <arpa/inet.h>
#include <rdma/rdma_cma.h>

static struct end a, b;

static void write_to(struct address (*wrong)(struct address))
{
    pair_open(&a, &b, NULL);
    pair_connect(&a, &b, NULL);
    struct address there = wrong(end_address(&b));
    post_rdma(&a, 1, IBV_WR_RDMA_WRITE, 0, 8, &there, 0, IBV_SEND_SIGNALED);
    any_wc(a.send_cq);
    pair_close(&a, &b);
}

static struct address other_order_of_address(struct address there)
{
    there.addr = __builtin_bswap64(there.addr);
    return there;
}

static struct address other_order_of_key(struct address there)
{
    there.rkey = __builtin_bswap32(there.rkey);
    return there;
}

static struct address offset_for_address(struct address there)
{
    there.addr = 16;
    return there;
}

static void swapped_address(void)
{
    write_to(other_order_of_address);
}

static void swapped_key(void)
{
    write_to(other_order_of_key);
}

static void offset(void)
{
    write_to(offset_for_address);
}

static void own_number(void)
{
    const struct connect_options options = IMPATIENT;

    pair_open(&a, &b, NULL);
    struct address own = end_address(&a);
    end_connect(&a, &own, &options);
    post_send(&a, 1, 0, 8, IBV_SEND_SIGNALED);
    any_wc(a.send_cq);
    pair_close(&a, &b);
}

static void before_the_route(void)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(7471)};
    struct rdma_event_channel *channel = rdma_create_event_channel();
    struct rdma_conn_param param = {.retry_count = 1};
    struct rdma_cm_event *event;
    struct rdma_cm_id *id;

    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    OK(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
    OK(rdma_resolve_addr(id, NULL, (struct sockaddr *)&to, 2000));
    OK(rdma_get_cm_event(channel, &event));
    OK(rdma_ack_cm_event(event));
    CHECK(rdma_connect(id, &param));
    OK(rdma_destroy_id(id));
    rdma_destroy_event_channel(channel);
}

const struct wording mistakes_words[] = {
    {{"a remote address in the other order of bytes", "remote-out-of-bounds", swapped_address, false},
     "bytes of the address are in the other order"},
    {{"an rkey in the other order of bytes", "wrong-rkey", swapped_key, false},
     "the same bytes in the other order"},
    {{"an offset for a remote address", "remote-out-of-bounds", offset, false}, "it is an offset"},
    {{"the own number as dest_qp_num", "wrong-dest-qp", own_number, false}, "its own number"},
    {{"a connection before the route is known", "cm-refused", before_the_route, false},
     "call rdma_resolve_route"},
    {MISTAKES_END, NULL},
};
