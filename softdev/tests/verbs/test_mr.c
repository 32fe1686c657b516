/* Memory regions: access rights, other virtual addresses, re-registration, implicit regions that must
 * fail. */
#include "tests/harness.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static struct end a, b;

static void open_pair(void)
{
    pair_open(&a, &b, NULL);
    pair_connect(&a, &b, NULL);
}

static void fields(void)
{
    struct ibv_mr *mr;

    open_pair();
    mr = ibv_reg_mr(a.pd, a.buf + 100, 1000, ACCESS_ALL);
    CHECK(mr && mr->addr == a.buf + 100 && mr->length == 1000 && mr->pd == a.pd && mr->context == a.context);
    CHECK(mr->lkey != a.mr->lkey && mr->rkey != a.mr->rkey);
    CHECK_EQ(ibv_dealloc_pd(a.pd), EBUSY);
    OK(ibv_dereg_mr(mr));
    /* Flushing to persistent memory. */
    CHECK(!ibv_reg_mr(a.pd, a.buf, 1000, ACCESS_ALL | 1 << 8));
    CHECK_EQ(errno, EOPNOTSUPP);
    /* Remote write or atomic access without local write access is invalid. */
    CHECK(!ibv_reg_mr(a.pd, a.buf, 1000, IBV_ACCESS_REMOTE_WRITE));
    CHECK_EQ(errno, EINVAL);
    CHECK(!ibv_reg_mr(a.pd, a.buf, 1000, IBV_ACCESS_REMOTE_ATOMIC));
    mr = ibv_reg_mr(a.pd, a.buf, 1000, IBV_ACCESS_REMOTE_READ);
    CHECK(mr);
    OK(ibv_dereg_mr(mr));
    pair_close(&a, &b);
}

/* A key is not reused at once: a peer that still has it must not reach the next region. */
static void fresh_keys(void)
{
    uint32_t last = 0;

    open_pair();
    for (int i = 0; i < 50; i++) {
        struct ibv_mr *mr = ibv_reg_mr(a.pd, a.buf, 4096, ACCESS_ALL);

        CHECK(mr);
        CHECK(mr->rkey != last);
        last = mr->rkey;
        OK(ibv_dereg_mr(mr));
    }
    pair_close(&a, &b);
}

static int memory_file(size_t size)
{
    const int fd = memfd_create("test", MFD_CLOEXEC);

    CHECK(fd >= 0);
    OK(ftruncate(fd, (off_t)size));
    return fd;
}

/* Memory behind a descriptor, as a dma-buf is: written to through the region, read through the file. */
static void of_a_file(void)
{
    const uint64_t iova = 0x100000;
    const int fd = memory_file(3 * 4096);
    uint8_t found[100];

    open_pair();
    struct ibv_mr *mr = ibv_reg_dmabuf_mr(b.pd, 5000, 4096, iova, fd, ACCESS_ALL);
    CHECK(mr && mr->addr == (void *)5000 && mr->length == 4096);
    fill(a.buf, 100, 7);
    const struct address there = {.addr = iova, .rkey = mr->rkey};
    do_rdma(&a, IBV_WR_RDMA_WRITE, 0, 100, &there, 50);
    CHECK_EQ(pread(fd, found, 100, 5050), 100);
    CHECK(!memcmp(a.buf, found, 100));
    do_rdma(&a, IBV_WR_RDMA_READ, 200, 100, &there, 50);
    CHECK(!memcmp(a.buf, a.buf + 200, 100));
    /* libibverbs refuses to change it, and the key leads to the file as before. */
    for (int flag = IBV_REREG_MR_CHANGE_TRANSLATION; flag <= IBV_REREG_MR_CHANGE_ACCESS; flag *= 2) {
        errno = 0;
        CHECK_EQ(
            ibv_rereg_mr(mr, flag, b.pd, b.buf, 4096, flag & IBV_REREG_MR_CHANGE_ACCESS ? ACCESS_ALL : 0),
            IBV_REREG_MR_ERR_INPUT);
        CHECK_EQ(errno, EINVAL);
    }
    CHECK(mr->addr == (void *)5000 && mr->length == 4096 && mr->pd == b.pd);
    fill(a.buf, 100, 8);
    do_rdma(&a, IBV_WR_RDMA_WRITE, 0, 100, &there, 50);
    CHECK_EQ(pread(fd, found, 100, 5050), 100);
    CHECK(!memcmp(a.buf, found, 100));
    OK(ibv_dereg_mr(mr));

    /* Behind its end, without memory, and of no size. */
    CHECK(!ibv_reg_dmabuf_mr(b.pd, 8192, 4097, iova, fd, ACCESS_ALL));
    CHECK_EQ(errno, EFAULT);
    CHECK(!ibv_reg_dmabuf_mr(b.pd, 0, 0, iova, fd, ACCESS_ALL));
    CHECK_EQ(errno, EINVAL);
    CHECK(!ibv_reg_dmabuf_mr(b.pd, UINT64_MAX, 4096, iova, fd, ACCESS_ALL));
    CHECK_EQ(errno, EINVAL);
    CHECK(!ibv_reg_dmabuf_mr(b.pd, 0, 4096, iova, b.context->async_fd, ACCESS_ALL));
    CHECK_EQ(errno, EOPNOTSUPP);
    /* A file that shrinks afterwards: an error, and no signal. */
    mr = ibv_reg_dmabuf_mr(b.pd, 0, 4096, iova, fd, ACCESS_ALL);
    CHECK(mr);
    OK(ftruncate(fd, 0));
    const struct address gone = {.addr = iova, .rkey = mr->rkey};
    post_rdma(&a, 3, IBV_WR_RDMA_WRITE, 0, 100, &gone, 0, IBV_SEND_SIGNALED);
    expect_wc(a.send_cq, 3, IBV_WC_REM_OP_ERR);
    OK(ibv_dereg_mr(mr));
    close(fd);
    pair_close(&a, &b);
}

/* struct ibv_mr_init_attr, which the headers here may not have. */
struct attributes {
    size_t length;
    int access;
    uint64_t comp_mask, iova;
    void *addr;
    int fd;
    uint64_t fd_offset;
    void *dmah, *buf;
};

/* ibv_reg_mr_ex, which headers have since rdma-core 59. */
static void by_attributes(void)
{
    struct attributes attr = {.length = 4096, .access = ACCESS_ALL, .comp_mask = 2};
    enum { IOVA = 1, ADDR = 2, FD = 4, FD_OFFSET = 8, DMAH = 16 };
    struct ibv_mr *(*reg_mr_ex)(struct ibv_pd *, void *) = NULL;

    *(void **)&reg_mr_ex = dlsym(RTLD_DEFAULT, "ibv_reg_mr_ex");
    CHECK(reg_mr_ex);
    open_pair();
    attr.addr = b.buf;
    struct ibv_mr *mr = reg_mr_ex(b.pd, &attr);
    CHECK(mr && mr->addr == b.buf && mr->length == 4096);
    OK(ibv_dereg_mr(mr));

    attr.comp_mask = ADDR | IOVA;
    attr.iova = 0x10000;
    mr = reg_mr_ex(b.pd, &attr);
    CHECK(mr);
    fill(a.buf, 100, 7);
    const struct address there = {.addr = 0x10000, .rkey = mr->rkey};
    do_rdma(&a, IBV_WR_RDMA_WRITE, 0, 100, &there, 50);
    CHECK(!memcmp(a.buf, b.buf + 50, 100));
    OK(ibv_dereg_mr(mr));

    attr.comp_mask = IOVA;
    CHECK(!reg_mr_ex(b.pd, &attr));
    CHECK_EQ(errno, EINVAL);
    attr.comp_mask = ADDR | FD;
    CHECK(!reg_mr_ex(b.pd, &attr));
    CHECK_EQ(errno, EINVAL);
    attr.comp_mask = ADDR | DMAH;
    CHECK(!reg_mr_ex(b.pd, &attr));
    CHECK_EQ(errno, EOPNOTSUPP);
    attr.comp_mask = IOVA | FD | FD_OFFSET;
    attr.fd = memory_file(8192);
    attr.fd_offset = 100;
    mr = reg_mr_ex(b.pd, &attr);
    CHECK(mr);
    OK(ibv_dereg_mr(mr));
    close(attr.fd);
    pair_close(&a, &b);
}

/* ibv_alloc_buf, of rdma-core 65: pages that the device gives, and what may be registered of them. */
static void given_memory(void)
{
    struct attributes attr = {.access = ACCESS_ALL, .comp_mask = 2 | 32};
    struct ibv_mr *(*reg_mr_ex)(struct ibv_pd *, void *) = NULL;
    struct ibv_mr *(*reg_buf)(struct ibv_pd *, void *, void *, size_t, int) = NULL;
    void *(*alloc_buf)(struct ibv_pd *, size_t, void **) = NULL;
    void (*free_buf)(void *) = NULL;
    int (*export_buf)(void *) = NULL;
    void *buf = NULL, *other = NULL;

    *(void **)&reg_mr_ex = dlsym(RTLD_DEFAULT, "ibv_reg_mr_ex");
    *(void **)&reg_buf = dlsym(RTLD_DEFAULT, "ibv_reg_buf_mr");
    *(void **)&alloc_buf = dlsym(RTLD_DEFAULT, "ibv_alloc_buf");
    *(void **)&free_buf = dlsym(RTLD_DEFAULT, "ibv_free_buf");
    *(void **)&export_buf = dlsym(RTLD_DEFAULT, "ibv_export_buf_dmabuf_fd");
    CHECK(reg_mr_ex && reg_buf && alloc_buf && free_buf && export_buf);
    open_pair();
    uint8_t *at = alloc_buf(b.pd, 5000, &buf), *second = alloc_buf(b.pd, 100, &other);
    CHECK(at && buf && second && other && buf != other);
    CHECK_EQ((uintptr_t)at % (uintptr_t)sysconf(_SC_PAGESIZE), 0);
    memset(at, 0, 5000);
    memset(second, 0, 100);
    struct ibv_mr *mr = reg_buf(b.pd, buf, at + 1000, 4000, ACCESS_ALL);
    CHECK(mr && mr->addr == at + 1000 && mr->length == 4000);
    fill(a.buf, 100, 5);
    struct address there = {.addr = (uintptr_t)at + 1000, .rkey = mr->rkey};
    do_rdma(&a, IBV_WR_RDMA_WRITE, 0, 100, &there, 3900);
    CHECK(holds(at + 4900, 100, 5));
    OK(ibv_dereg_mr(mr));

    attr.buf = buf;
    attr.addr = at;
    attr.length = 5000;
    mr = reg_mr_ex(b.pd, &attr);
    CHECK(mr && mr->addr == at && mr->length == 5000);
    OK(ibv_dereg_mr(mr));
    /* Behind its end, before its start, of another PD, of another buffer, and with a file. */
    attr.length = 5001;
    CHECK(!reg_mr_ex(b.pd, &attr));
    CHECK_EQ(errno, EINVAL);
    attr.length = 5000;
    attr.comp_mask |= 4;
    CHECK(!reg_mr_ex(b.pd, &attr));
    CHECK_EQ(errno, EINVAL);
    CHECK(!reg_buf(b.pd, buf, at + 1, 5000, ACCESS_ALL));
    CHECK_EQ(errno, EINVAL);
    CHECK(!reg_buf(b.pd, buf, at - 1, 2, ACCESS_ALL));
    CHECK_EQ(errno, EINVAL);
    CHECK(!reg_buf(a.pd, buf, at, 100, ACCESS_ALL));
    CHECK_EQ(errno, EINVAL);
    CHECK(!reg_buf(b.pd, other, at, 100, ACCESS_ALL));
    CHECK_EQ(errno, EINVAL);
    /* Pages of the process, and of no file. */
    CHECK_EQ(export_buf(buf), -1);
    CHECK_EQ(errno, EOPNOTSUPP);
    CHECK(!alloc_buf(b.pd, SIZE_MAX, &other) && errno == ENOMEM);
    CHECK(!alloc_buf(b.pd, 0, &other) && errno == EINVAL);
    free_buf(buf);
    CHECK(!reg_buf(b.pd, buf, at, 100, ACCESS_ALL));
    CHECK_EQ(errno, EINVAL);
    mr = reg_buf(b.pd, other, second, 100, ACCESS_ALL);
    CHECK(mr);
    OK(ibv_dereg_mr(mr));
    free_buf(other);
    pair_close(&a, &b);
}

/* ibv_reg_mr_iova: the region has other addresses, locally and remotely. */
static void other_addresses(void)
{
    const uint64_t iova = 0x100000;
    struct ibv_mr *mr;
    struct address address;
    struct ibv_sge sge;

    open_pair();
    mr = ibv_reg_mr_iova(b.pd, b.buf, 4096, iova, ACCESS_ALL);
    CHECK(mr);
    address = (struct address){.addr = iova, .rkey = mr->rkey};
    fill(a.buf, 100, 1);
    post_rdma(&a, 1, IBV_WR_RDMA_WRITE, 0, 100, &address, 50, IBV_SEND_SIGNALED);
    expect_wc(a.send_cq, 1, IBV_WC_SUCCESS);
    CHECK(holds(b.buf + 50, 100, 1));
    /* zero based, at the receiver */
    struct ibv_mr *zero = ibv_reg_mr_iova(b.pd, b.buf + 8192, 4096, 0, ACCESS_ALL);
    CHECK(zero);
    sge = (struct ibv_sge){.addr = 96, .length = 100, .lkey = zero->lkey};
    struct ibv_recv_wr recv = {.wr_id = 3, .sg_list = &sge, .num_sge = 1}, *bad;
    OK(ibv_post_recv(b.qp, &recv, &bad));
    post_send(&a, 2, 0, 100, IBV_SEND_SIGNALED);
    expect_wc(a.send_cq, 2, IBV_WC_SUCCESS);
    expect_wc(b.recv_cq, 3, IBV_WC_SUCCESS);
    CHECK(holds(b.buf + 8192 + 96, 100, 1));
    /* its real address is outside */
    address.addr = (uintptr_t)b.buf;
    post_rdma(&a, 4, IBV_WR_RDMA_WRITE, 0, 8, &address, 0, IBV_SEND_SIGNALED);
    expect_wc(a.send_cq, 4, IBV_WC_REM_ACCESS_ERR);
    OK(ibv_dereg_mr(zero));
    OK(ibv_dereg_mr(mr));
    pair_close(&a, &b);
}

static void reregister(void)
{
    struct ibv_mr *mr;
    struct address address;

    open_pair();
    mr = ibv_reg_mr(b.pd, b.buf, 4096, ACCESS_ALL);
    CHECK(mr);
    uint32_t rkey = mr->rkey;
    OK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, b.buf + 8192, 4096, 0));
    CHECK_EQ(mr->rkey, rkey); /* peers may keep using the key */
    CHECK(mr->addr == b.buf + 8192 && mr->length == 4096);
    address = (struct address){.addr = (uintptr_t)b.buf + 8192, .rkey = mr->rkey};
    fill(a.buf, 64, 2);
    post_rdma(&a, 1, IBV_WR_RDMA_WRITE, 0, 64, &address, 0, IBV_SEND_SIGNALED);
    expect_wc(a.send_cq, 1, IBV_WC_SUCCESS);
    CHECK(holds(b.buf + 8192, 64, 2));

    CHECK(ibv_rereg_mr(mr, 0x1000, NULL, NULL, 0, 0) != 0);
    CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, NULL, 0, 0) != 0);

    struct ibv_pd *other = ibv_alloc_pd(b.context);
    CHECK(other);
    OK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_PD, other, NULL, 0, 0));
    CHECK(mr->pd == other);
    CHECK_EQ(ibv_dealloc_pd(other), EBUSY);
    OK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_PD, b.pd, NULL, 0, 0));
    OK(ibv_dealloc_pd(other));

    OK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0,
                    IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ));
    address.rkey = mr->rkey;
    post_rdma(&a, 2, IBV_WR_RDMA_READ, 0, 64, &address, 0, IBV_SEND_SIGNALED);
    expect_wc(a.send_cq, 2, IBV_WC_SUCCESS);
    post_rdma(&a, 3, IBV_WR_RDMA_WRITE, 0, 64, &address, 0, IBV_SEND_SIGNALED);
    expect_wc(a.send_cq, 3, IBV_WC_REM_ACCESS_ERR);
    OK(ibv_dereg_mr(mr));
    pair_close(&a, &b);
}

/* Several regions over the same bytes, each with its own access; the last byte is inside, the next one is
 * not. */
static void overlapping(void)
{
    struct ibv_mr *outer, *inner;
    struct address address;

    open_pair();
    outer = ibv_reg_mr(b.pd, b.buf, 8192, ACCESS_ALL);
    inner = ibv_reg_mr(b.pd, b.buf + 1000, 100, ACCESS_ALL);
    CHECK(outer && inner);
    fill(a.buf, 200, 3);
    address = (struct address){.addr = (uintptr_t)b.buf + 1000, .rkey = inner->rkey};
    post_rdma(&a, 1, IBV_WR_RDMA_WRITE, 0, 100, &address, 0, IBV_SEND_SIGNALED);
    expect_wc(a.send_cq, 1, IBV_WC_SUCCESS);
    CHECK(holds(b.buf + 1000, 100, 3));
    OK(ibv_dereg_mr(inner));
    address.rkey = outer->rkey;
    post_rdma(&a, 2, IBV_WR_RDMA_WRITE, 0, 200, &address, 0, IBV_SEND_SIGNALED);
    expect_wc(a.send_cq, 2, IBV_WC_SUCCESS);
    CHECK(holds(b.buf + 1000, 200, 3));
    OK(ibv_dereg_mr(outer));
    pair_close(&a, &b);
}

/* A parent domain is its PD under another handle: objects made in either work together. */
static void parent_domains(void)
{
    struct ibv_td_init_attr td_attr = {0};
    struct ibv_parent_domain_init_attr attr = {0};
    struct ibv_td *td;
    struct ibv_pd *parent;
    struct ibv_mr *mr;
    struct address address;

    open_pair();
    td = ibv_alloc_td(b.context, &td_attr);
    CHECK(td);
    CHECK(!ibv_alloc_parent_domain(b.context, &attr));
    attr.pd = b.pd;
    attr.td = td;
    parent = ibv_alloc_parent_domain(b.context, &attr);
    CHECK(parent && parent != b.pd);
    CHECK_EQ(ibv_dealloc_pd(b.pd), EBUSY);
    mr = ibv_reg_mr(parent, b.buf + 4096, 100, ACCESS_ALL);
    CHECK(mr && mr->pd == parent);
    address = (struct address){.addr = (uintptr_t)b.buf + 4096, .rkey = mr->rkey};
    fill(a.buf, 100, 8);
    do_rdma(&a, IBV_WR_RDMA_WRITE, 0, 100, &address, 0);
    CHECK(holds(b.buf + 4096, 100, 8));
    OK(ibv_dereg_mr(mr));
    OK(ibv_dealloc_pd(parent));
    OK(ibv_dealloc_td(td));
    pair_close(&a, &b);
}

enum { PAGE = 4096, PAGES = 4 * PAGE };

static int registers(uint8_t *at, size_t length, int access)
{
    struct ibv_mr *mr = ibv_reg_mr(a.pd, at, length, access);
    const int error = mr ? 0 : errno;

    if (mr)
        OK(ibv_dereg_mr(mr));
    return error;
}

static uint8_t *memory(int rights)
{
    void *map = mmap(NULL, PAGES, rights, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    CHECK(map != MAP_FAILED);
    return map;
}

/* Memory that the program may not write, or not read, is refused as the kernel refuses it. */
static void rights(void)
{
    static const char constant[2 * PAGE] = "constant";
    uint8_t *whole = memory(PROT_READ | PROT_WRITE), *only = memory(PROT_READ);

    open_pair();
    if (kernel_lacks(madvise(whole, PAGE, MADV_POPULATE_WRITE), "madvise"))
        return pair_close(&a, &b);
    CHECK_EQ(registers(whole, PAGES, ACCESS_ALL), 0);
    CHECK_EQ(registers(only, PAGES, ACCESS_ALL), EFAULT);
    CHECK_EQ(registers(only, 1, IBV_ACCESS_LOCAL_WRITE), EFAULT);
    CHECK_EQ(registers(only, PAGES, IBV_ACCESS_REMOTE_READ), 0);
    CHECK_EQ(registers(only, PAGES, 0), 0);
    CHECK_EQ(registers((uint8_t *)(uintptr_t)constant, sizeof constant, ACCESS_ALL), EFAULT);
    CHECK_EQ(registers((uint8_t *)(uintptr_t)constant, sizeof constant, IBV_ACCESS_REMOTE_READ), 0);
    struct ibv_mr *mr = ibv_reg_mr(a.pd, only, PAGES, IBV_ACCESS_REMOTE_READ);
    CHECK(mr);
    CHECK_EQ(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, ACCESS_ALL), IBV_REREG_MR_ERR_INPUT);
    CHECK_EQ(errno, EFAULT);
    OK(ibv_dereg_mr(mr));
    OK(mprotect(whole + 3 * PAGE, PAGE, PROT_READ));
    CHECK_EQ(registers(whole, PAGES, ACCESS_ALL), EFAULT);
    CHECK_EQ(registers(whole, 3 * PAGE, ACCESS_ALL), 0);
    CHECK_EQ(registers(whole, 3 * PAGE + 1, ACCESS_ALL), EFAULT);
    OK(mprotect(whole + 3 * PAGE, PAGE, PROT_NONE));
    CHECK_EQ(registers(whole, PAGES, 0), EFAULT);
    CHECK_EQ(registers(whole + 3 * PAGE, 8, IBV_ACCESS_REMOTE_READ), EFAULT);
    OK(munmap(whole, PAGES));
    OK(munmap(only, PAGES));
    pair_close(&a, &b);
}

TEST_MAIN(TEST(rights), TEST(fields), TEST(fresh_keys), TEST(by_attributes), TEST(given_memory),
          TEST(of_a_file), TEST(other_addresses), TEST(reregister), TEST(overlapping), TEST(parent_domains))
