/* A program that is linked with neither library: it loads them by name, as NCCL and the loaders of Go and Rust do, and
 * asks for functions by name and version. Run with a directory of the device in LD_LIBRARY_PATH. */
#include <arpa/inet.h>
#include <dlfcn.h>
#include <rdma/rdma_cma.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* tests/harness.h calls libibverbs. */
#define CHECK(condition)                                                                                     \
    do {                                                                                                     \
        if (!(condition)) {                                                                                  \
            fprintf(stderr, "%s:%d: not true: %s (errno: %m)\n", __FILE__, __LINE__, #condition);            \
            exit(1);                                                                                         \
        }                                                                                                    \
    } while (0)

static void *verbs, *cm;

/* Whatever the version. */
#define ANY(library, name)                 ((__typeof__(&(name)))dlsym(library, #name))
#define OF_VERSION(library, name, version) ((__typeof__(&(name)))dlvsym(library, #name, version))

static void versions(void)
{
    CHECK(OF_VERSION(verbs, ibv_get_device_list, "IBVERBS_1.1") == ANY(verbs, ibv_get_device_list));
    CHECK(OF_VERSION(verbs, ibv_reg_mr_iova2, "IBVERBS_1.8") == ANY(verbs, ibv_reg_mr_iova2));
    CHECK(!dlvsym(verbs, "ibv_reg_mr_iova2", "IBVERBS_1.1"));
    CHECK(dlvsym(verbs, "ibv_create_comp_cntr", "IBVERBS_1.18"));
    CHECK(dlvsym(cm, "rdma_create_id", "RDMACM_1.0"));
    CHECK(dlsym(cm, "rdma_create_id") == dlsym(verbs, "rdma_create_id")); /* one device */
    CHECK(dlsym(verbs, "softdev_version"));
    CHECK(!dlsym(verbs, "soft_open_device")); /* nothing of its own */
}

static struct ibv_context *open_soft(void)
{
    struct ibv_device **list = ANY(verbs, ibv_get_device_list)(NULL);
    struct ibv_context *context = NULL;

    CHECK(list);
    for (int i = 0; list[i] && !context; i++)
        if (!strcmp(ANY(verbs, ibv_get_device_name)(list[i]), "soft0"))
            context = ANY(verbs, ibv_open_device)(list[i]);
    ANY(verbs, ibv_free_device_list)(list);
    CHECK(context);
    return context;
}

static void objects(void)
{
    static char memory[4096];
    struct ibv_context *context = open_soft();
    struct ibv_pd *pd = ANY(verbs, ibv_alloc_pd)(context);
    struct ibv_mr *mr = OF_VERSION(verbs, ibv_reg_mr_iova2, "IBVERBS_1.8")(pd, memory, sizeof memory, 0, 1);
    struct ibv_cq *cq = ANY(verbs, ibv_create_cq)(context, 4, NULL, NULL, 0);
    struct ibv_wc wc;

    CHECK(pd && mr && cq);
    CHECK(!context->ops.poll_cq(cq, 1, &wc));
    CHECK(!ANY(verbs, ibv_destroy_cq)(cq));
    CHECK(!ANY(verbs, ibv_dereg_mr)(mr));
    CHECK(!ANY(verbs, ibv_dealloc_pd)(pd));
    CHECK(!ANY(verbs, ibv_close_device)(context));
}

static void addresses(void)
{
    struct sockaddr_in here = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct rdma_cm_id *id;

    CHECK(!OF_VERSION(cm, rdma_create_id, "RDMACM_1.0")(NULL, &id, NULL, RDMA_PS_TCP));
    here.sin_port = htons(1);
    CHECK(!ANY(cm, rdma_resolve_addr)(id, NULL, (struct sockaddr *)&here, 10000));
    CHECK(id->verbs && !strcmp(id->verbs->device->name, "soft0"));
    CHECK(!ANY(cm, rdma_destroy_id)(id));
}

/* What the device has not comes from the library behind it: names of the states, private functions of providers. */
static void the_real_library(void)
{
    const char *real = getenv("REAL");
    const char *(*describe)(enum ibv_wc_status) = ANY(verbs, ibv_wc_status_str);

    CHECK(!real == !describe);
    if (!real)
        return;
    CHECK(!strcmp(describe(IBV_WC_SUCCESS), "success"));
    CHECK(dlsym(cm, "rsocket"));
}

int main(void)
{
    setenv("SOFTDEV_DEVICE", "soft", 1);
    verbs = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);
    cm = verbs ? dlopen("librdmacm.so.1", RTLD_NOW | RTLD_LOCAL) : NULL;
    if (!cm) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    versions();
    objects();
    addresses();
    the_real_library();
    return 0;
}
