/* Device list, queries, GID table, address handles. */
#include "softdev.h"
#include "tests/harness.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static bool listed(void)
{
    int count = -1;
    struct ibv_device **list = ibv_get_device_list(&count);
    bool found = false;

    CHECK(list);
    for (int i = 0; i < count; i++)
        found |= !strcmp(ibv_get_device_name(list[i]), "soft0");
    CHECK(!list[count]);
    ibv_free_device_list(list);
    return found;
}

static void list(void)
{
    CHECK(listed());
    CHECK(!setenv("SOFTDEV_DEVICE", "none", 1));
    CHECK(!listed());
    CHECK(!setenv("SOFTDEV_DEVICE", "soft", 1));
    CHECK(listed());
    CHECK_EQ(softdev_choose("none"), 0); /* goes before the environment */
    CHECK(!listed());
    CHECK_EQ(softdev_choose("some"), EINVAL);
    CHECK(!listed());
    CHECK(!setenv("SOFTDEV_DEVICE", "none", 1));
    CHECK_EQ(softdev_choose("soft"), 0);
    CHECK(listed());
    CHECK_EQ(softdev_choose(NULL), 0);
    CHECK(!listed());
    CHECK(!unsetenv("SOFTDEV_DEVICE"));
    struct ibv_device **without_count = ibv_get_device_list(NULL);

    CHECK(without_count && without_count[0]);
    ibv_free_device_list(without_count);
}

/* As of qperf: the list is a block of malloc(). */
static void list_is_freed_by_free(void)
{
    struct ibv_device **list = ibv_get_device_list(NULL);

    CHECK(list && list[0]);
    free(list);
}

int uct_ib_device_is_accessible(struct ibv_device *device);

/* Called by UCX, which otherwise looks for /dev/infiniband/NAME. */
static void ucx_may_use_it(void)
{
    struct ibv_context *context = test_open();
    struct ibv_device stranger = *context->device;

    CHECK(uct_ib_device_is_accessible(context->device));
    CHECK(!uct_ib_device_is_accessible(&stranger));
    OK(ibv_close_device(context));
}

static void attributes(void)
{
    struct ibv_context *context = test_open(), *second = test_open();
    struct ibv_device_attr attr;
    struct ibv_device_attr_ex ex;
    struct ibv_port_attr port;
    __be16 pkey;

    CHECK(context != second);
    OK(ibv_query_device(context, &attr));
    CHECK(attr.node_guid == ibv_get_device_guid(context->device));
    CHECK(attr.node_guid);
    CHECK_EQ(attr.phys_port_cnt, 1);
    CHECK_EQ(attr.max_pkeys, 128);
    CHECK(ibv_get_device_index(context->device) >= 0);
    CHECK(attr.max_qp > 0 && attr.max_cq > 0 && attr.max_cqe > 0 && attr.max_mr > 0 && attr.max_pd > 0);
    CHECK(attr.max_sge > 0 && attr.max_qp_wr > 0 && attr.max_srq > 0 && attr.max_srq_wr > 0);
    CHECK(attr.atomic_cap != IBV_ATOMIC_NONE);
    CHECK(attr.device_cap_flags & IBV_DEVICE_MEM_MGT_EXTENSIONS); /* SEND with invalidation */
    CHECK(attr.device_cap_flags & IBV_DEVICE_PORT_ACTIVE_EVENT);  /* core/test_fault_states.c */
    OK(ibv_query_device_ex(context, NULL, &ex));
    CHECK(ex.orig_attr.node_guid == attr.node_guid && ex.orig_attr.max_qp == attr.max_qp);
    CHECK_EQ(ex.phys_port_cnt_ex, 1);

    OK(ibv_query_port(context, 1, &port));
    CHECK_EQ(port.state, IBV_PORT_ACTIVE);
    CHECK_EQ(port.link_layer, IBV_LINK_LAYER_ETHERNET);
    CHECK(port.gid_tbl_len > 0);
    CHECK_EQ(ibv_query_port(context, 0, &port), EINVAL);
    CHECK_EQ(ibv_query_port(context, 2, &port), EINVAL);

    OK(ibv_query_pkey(context, 1, 0, &pkey));
    CHECK_EQ(pkey, 0xffff);
    CHECK(ibv_query_pkey(context, 1, 1, &pkey));
    CHECK_EQ(ibv_get_pkey_index(context, 1, 0xffff), 0);
    CHECK(ibv_get_pkey_index(context, 1, 0x1234) < 0);
    CHECK(!readable(context->async_fd));
    OK(ibv_close_device(second));
    OK(ibv_close_device(context));
}

static bool zero(const union ibv_gid *gid)
{
    return all_bytes(gid->raw, sizeof gid->raw, 0);
}

static bool is_ipv4(const union ibv_gid *gid)
{
    return all_bytes(gid->raw, 10, 0) && all_bytes(gid->raw + 10, 2, 0xff);
}

enum { FIRST_IPV4 = 3 }; /* where cards have it; the address may also be elsewhere in the table */

static void gids(void)
{
    struct ibv_context *context = test_open();
    struct ibv_port_attr port;
    struct ibv_gid_entry entries[256];
    union ibv_gid gid;
    ssize_t used;
    bool ipv4 = false;

    OK(ibv_query_port(context, 1, &port));
    CHECK(port.gid_tbl_len <= 256);
    used = ibv_query_gid_table(context, entries, 256, 0);
    CHECK(used > 0);
    for (ssize_t i = 0; i < used; i++) {
        struct ibv_gid_entry one;

        CHECK_EQ(entries[i].gid_type, IBV_GID_TYPE_ROCE_V2);
        CHECK_EQ(entries[i].port_num, 1);
        OK(ibv_query_gid(context, 1, (int)entries[i].gid_index, &gid));
        CHECK(!memcmp(&gid, &entries[i].gid, sizeof gid));
        CHECK(!zero(&gid));
        OK(ibv_query_gid_ex(context, 1, entries[i].gid_index, &one, 0));
        CHECK(!memcmp(&one, &entries[i], sizeof one));
        for (ssize_t j = 0; j < i && entries[i].gid_index != FIRST_IPV4; j++)
            CHECK(memcmp(&entries[j].gid, &gid, sizeof gid));
        ipv4 |= is_ipv4(&gid);
    }
    OK(ibv_query_gid(context, 1, 0, &gid));
    CHECK(!zero(&gid));
    OK(ibv_query_gid(context, 1, FIRST_IPV4, &gid));
    CHECK_EQ(is_ipv4(&gid), ipv4);
    if (used < port.gid_tbl_len) {
        struct ibv_gid_entry empty;

        /* Not shown, if it is a loopback address. */
        OK(ibv_query_gid(context, 1, port.gid_tbl_len - 1, &gid));
        CHECK(zero(&gid));
        CHECK_EQ(ibv_query_gid_ex(context, 1, (uint32_t)port.gid_tbl_len - 1, &empty, 0), ENODATA);
    }
    CHECK(ibv_query_gid(context, 1, port.gid_tbl_len, &gid));
    CHECK(ibv_query_gid(context, 1, -1, &gid));
    CHECK(ibv_query_gid(context, 2, 0, &gid));
    CHECK_EQ(ibv_query_gid_table(context, entries, 0, 0), -EINVAL);
    OK(ibv_close_device(context));
}

static void address_handles(void)
{
    struct ibv_context *context = test_open();
    struct ibv_pd *pd = ibv_alloc_pd(context);
    struct ibv_ah_attr good = {.is_global = 1, .port_num = 1, .grh = {.hop_limit = 1}}, bad;
    struct ibv_ah *ah;

    CHECK(pd);
    OK(ibv_query_gid(context, 1, 0, &good.grh.dgid));
    ah = ibv_create_ah(pd, &good);
    CHECK(ah && ah->pd == pd && ah->context == context);
    CHECK_EQ(ibv_dealloc_pd(pd), EBUSY);
    OK(ibv_destroy_ah(ah));

    bad = good;
    bad.is_global = 0;
    CHECK(!ibv_create_ah(pd, &bad));
    CHECK_EQ(errno, EINVAL);
    bad = good;
    bad.port_num = 2;
    CHECK(!ibv_create_ah(pd, &bad));
    bad = good;
    bad.grh.sgid_index = 200;
    CHECK(!ibv_create_ah(pd, &bad));
    OK(ibv_dealloc_pd(pd));
    OK(ibv_close_device(context));
}

static void clock_values(void)
{
    struct ibv_context *context = test_open();
    struct ibv_values_ex values = {.comp_mask = IBV_VALUES_MASK_RAW_CLOCK}, later = values;

    OK(ibv_query_rt_values_ex(context, &values));
    CHECK_EQ(values.comp_mask, IBV_VALUES_MASK_RAW_CLOCK);
    OK(ibv_query_rt_values_ex(context, &later));
    CHECK(later.raw_clock.tv_sec > values.raw_clock.tv_sec ||
          (later.raw_clock.tv_sec == values.raw_clock.tv_sec &&
           later.raw_clock.tv_nsec >= values.raw_clock.tv_nsec));
    OK(ibv_close_device(context));
}

/* It has a descriptor that can be duplicated, and is no way into the device. */
static void is_not_imported(void)
{
    struct ibv_context *context = test_open();
    int copy = dup(context->cmd_fd);

    CHECK(copy >= 0);
    errno = 0;
    CHECK(!ibv_import_device(copy));
    CHECK_EQ(errno, EOPNOTSUPP);
    close(copy);
    errno = 0;
    CHECK(!ibv_import_device(-1));
    CHECK(errno);
    OK(ibv_close_device(context));
}

TEST_MAIN(TEST(list), TEST(list_is_freed_by_free), TEST(ucx_may_use_it), TEST(attributes), TEST(gids),
          TEST(address_handles), TEST(clock_values), TEST(is_not_imported))
