#include "fuzz_net.h"

#include "core/core.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <limits.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <sys/uio.h>
#include <time.h>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#include <sanitizer/asan_interface.h>
#endif
#endif
#ifndef ASAN_POISON_MEMORY_REGION
#define ASAN_POISON_MEMORY_REGION(at, size)   ((void)(at), (void)(size))
#define ASAN_UNPOISON_MEMORY_REGION(at, size) ((void)(at), (void)(size))
#endif

/* The functions that the device calls instead of those without the prefix: see CMakeLists.txt. */
int net_bind(int fd, const struct sockaddr *address, socklen_t length);
int net_getsockname(int fd, struct sockaddr *address, socklen_t *length);
int net_connect(int fd, const struct sockaddr *address, socklen_t length);
int net_getsockopt(int fd, int level, int name, void *value, socklen_t *length);
int net_recvmmsg(int fd, struct mmsghdr *messages, unsigned int count, int flags, struct timespec *timeout);
ssize_t net_recvmsg(int fd, struct msghdr *message, int flags);
int net_sendmmsg(int fd, struct mmsghdr *messages, unsigned int count, int flags);
ssize_t net_sendmsg(int fd, const struct msghdr *message, int flags);
ssize_t net_sendto(int fd, const void *bytes, size_t size, int flags, const struct sockaddr *to,
                   socklen_t length);
int net_clock_gettime(clockid_t clock, struct timespec *now);
int net_timerfd_settime(int fd, int flags, const struct itimerspec *new, struct itimerspec *old);
int net_getifaddrs(struct ifaddrs **all);
void net_freeifaddrs(struct ifaddrs *all);
ssize_t net_getrandom(void *to, size_t size, unsigned int flags);
int net_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*run)(void *), void *argument);
int net_epoll_wait(int fd, struct epoll_event *events, int most, int timeout);
ssize_t net_process_vm_readv(pid_t pid, const struct iovec *here, unsigned long nhere,
                             const struct iovec *there, unsigned long nthere, unsigned long flags);
ssize_t net_process_vm_writev(pid_t pid, const struct iovec *here, unsigned long nhere,
                              const struct iovec *there, unsigned long nthere, unsigned long flags);

enum { PORTS = 8, QUEUE = 512, EPHEMERAL = 50000 };

const uint8_t net_here4[16] = {[10] = 0xff, [11] = 0xff, 10, 1, 0, 1};
const uint8_t net_here6[16] = {0xfd, 1, [15] = 1};
uint64_t net_now = 1000000000, net_tick;
bool net_one_thread;
uint8_t *net_peer_memory;
size_t net_peer_bytes;
unsigned int net_room = UINT_MAX;

static struct {
    int fd;
    bool ipv4;
    uint16_t number;
} ports[PORTS];
static unsigned int nports;

static struct {
    int fd;
    struct net_packet packet;
} queue[QUEUE];
static unsigned int head, tail;

static bool is_ip(int family)
{
    return family == AF_INET || family == AF_INET6;
}

static uint16_t port_of(const struct sockaddr *address)
{
    return ntohs(address->sa_family == AF_INET
                     ? ((const struct sockaddr_in *)(const void *)address)->sin_port
                     : ((const struct sockaddr_in6 *)(const void *)address)->sin6_port);
}

static void gid_of(const void *address, bool ipv4, uint8_t gid[16])
{
    static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};

    memcpy(gid, ipv4 ? mapped : address, ipv4 ? 12 : 16);
    if (ipv4)
        memcpy(gid + 12, address, 4);
}

/* ---- addresses and sockets -------------------------------------------------------------------------- */

int net_getifaddrs(struct ifaddrs **all)
{
    static struct sockaddr_in four = {.sin_family = AF_INET};
    static struct sockaddr_in6 six = {.sin6_family = AF_INET6};
    static struct ifaddrs second = {.ifa_name = (char *)"lo", .ifa_flags = IFF_UP, .ifa_addr = (void *)&six};
    static struct ifaddrs first = {
        .ifa_next = &second, .ifa_name = (char *)"lo", .ifa_flags = IFF_UP, .ifa_addr = (void *)&four};

    memcpy(&four.sin_addr, net_here4 + 12, 4);
    memcpy(&six.sin6_addr, net_here6, 16);
    *all = &first;
    return 0;
}

void net_freeifaddrs(struct ifaddrs *all)
{
    (void)all;
}

/* Only recorded: takes no real port, and the socket stays silent. */
int net_bind(int fd, const struct sockaddr *address, socklen_t length)
{
    if (!is_ip(address->sa_family))
        return bind(fd, address, length);
    if (nports == PORTS)
        abort();
    ports[nports].fd = fd;
    ports[nports].ipv4 = address->sa_family == AF_INET;
    ports[nports].number = port_of(address);
    if (!ports[nports].number)
        ports[nports].number = (uint16_t)(EPHEMERAL + nports);
    nports++;
    return 0;
}

int net_getsockname(int fd, struct sockaddr *address, socklen_t *length)
{
    for (unsigned int i = 0; i < nports; i++)
        if (ports[i].fd == fd) {
            struct sockaddr_in6 name = {.sin6_family = ports[i].ipv4 ? AF_INET : AF_INET6,
                                        .sin6_port = htons(ports[i].number)};
            memcpy(address, &name, *length < sizeof name ? *length : sizeof name);
            return 0;
        }
    return getsockname(fd, address, length);
}

int net_connect(int fd, const struct sockaddr *address, socklen_t length)
{
    return is_ip(address->sa_family) ? 0 : connect(fd, address, length);
}

int net_getsockopt(int fd, int level, int name, void *value, socklen_t *length)
{
    if (level != IPPROTO_IP && level != IPPROTO_IPV6)
        return getsockopt(fd, level, name, value, length);
    *(int *)value = 1500; /* the device asks a route only for its path MTU */
    return 0;
}

/* ---- packets ---------------------------------------------------------------------------------------- */

bool net_waiting(void)
{
    return head != tail;
}

void net_put(const struct net_packet *packet)
{
    const bool ipv4 = soft_gid_is_ipv4(packet->path.dst);

    for (unsigned int i = 0; i < nports && tail - head < QUEUE; i++)
        if (ports[i].ipv4 == ipv4 && ports[i].number == packet->path.dst_port) {
            queue[tail % QUEUE].fd = ports[i].fd;
            queue[tail++ % QUEUE].packet = *packet;
            return;
        }
}

static void put_cmsg(struct msghdr *to, size_t *used, int level, int type, const void *data, size_t size)
{
    struct cmsghdr *c = (struct cmsghdr *)(void *)((char *)to->msg_control + *used);

    if (*used + CMSG_SPACE(size) > to->msg_controllen)
        abort(); /* the device gave no buffer for what it asked for */
    c->cmsg_level = level;
    c->cmsg_type = type;
    c->cmsg_len = CMSG_LEN(size);
    memcpy(CMSG_DATA(c), data, size);
    *used += CMSG_SPACE(size);
}

/* Returns the size of what it stored. */
static size_t give(const struct net_packet *packet, struct msghdr *to)
{
    size_t used = 0, at = 0;

    for (size_t i = 0; i < to->msg_iovlen && at < packet->size; i++) {
        const size_t left = packet->size - at,
                     n = left < to->msg_iov[i].iov_len ? left : to->msg_iov[i].iov_len;
        ASAN_UNPOISON_MEMORY_REGION(to->msg_iov[i].iov_base, to->msg_iov[i].iov_len);
        memcpy(to->msg_iov[i].iov_base, packet->bytes + at, n);
        /* The bytes behind it belong to an older packet: the device must not read them. */
        ASAN_POISON_MEMORY_REGION((uint8_t *)to->msg_iov[i].iov_base + n, to->msg_iov[i].iov_len - n);
        at += n;
    }
    to->msg_flags = at < packet->size ? MSG_TRUNC : 0;
    if (soft_gid_is_ipv4(packet->path.dst)) {
        struct sockaddr_in from = {.sin_family = AF_INET, .sin_port = htons(packet->path.src_port)};
        struct in_pktinfo info = {0};
        memcpy(&from.sin_addr, packet->path.src + 12, 4);
        memcpy(&info.ipi_addr, packet->path.dst + 12, 4);
        memcpy(to->msg_name, &from, sizeof from);
        to->msg_namelen = sizeof from;
        put_cmsg(to, &used, IPPROTO_IP, IP_PKTINFO, &info, sizeof info);
        put_cmsg(to, &used, IPPROTO_IP, IP_TOS, &packet->tos, 1);
    } else {
        struct sockaddr_in6 from = {.sin6_family = AF_INET6, .sin6_port = htons(packet->path.src_port)};
        struct in6_pktinfo info = {0};
        const int tclass = packet->tos;
        memcpy(&from.sin6_addr, packet->path.src, 16);
        memcpy(&info.ipi6_addr, packet->path.dst, 16);
        memcpy(to->msg_name, &from, sizeof from);
        to->msg_namelen = sizeof from;
        put_cmsg(to, &used, IPPROTO_IPV6, IPV6_PKTINFO, &info, sizeof info);
        put_cmsg(to, &used, IPPROTO_IPV6, IPV6_TCLASS, &tclass, sizeof tclass);
    }
    to->msg_controllen = used;
    return at;
}

/* In order of arrival, as far as they are for this socket. */
static bool is_next(int fd)
{
    return head != tail && queue[head % QUEUE].fd == fd;
}

int net_recvmmsg(int fd, struct mmsghdr *messages, unsigned int count, int flags, struct timespec *timeout)
{
    unsigned int n = 0;

    (void)flags, (void)timeout;
    for (; n < count && is_next(fd); n++)
        messages[n].msg_len = (unsigned int)give(&queue[head++ % QUEUE].packet, &messages[n].msg_hdr);
    if (n)
        return (int)n;
    errno = EAGAIN;
    return -1;
}

ssize_t net_recvmsg(int fd, struct msghdr *message, int flags)
{
    /* A socket not bound to a port here is outside this network; bound ones are real, and silent. */
    return is_next(fd) ? (ssize_t)give(&queue[head++ % QUEUE].packet, message) : recvmsg(fd, message, flags);
}

/* One message may be several packets (UDP_SEGMENT). Returns its size. */
static size_t send_one(int fd, const struct msghdr *message)
{
    static uint8_t bytes[1 << 16];
    struct net_packet packet = {0};
    const struct sockaddr *to = message->msg_name;
    const bool ipv4 = to->sa_family == AF_INET;
    size_t size = 0, segment = 0;

    packet.path.dst_port = port_of(to);
    gid_of(ipv4 ? (const void *)&((const struct sockaddr_in *)(const void *)to)->sin_addr
                : (const void *)&((const struct sockaddr_in6 *)(const void *)to)->sin6_addr,
           ipv4, packet.path.dst);
    memcpy(packet.path.src, ipv4 ? net_here4 : net_here6, 16);
    for (unsigned int i = 0; i < nports; i++)
        if (ports[i].fd == fd)
            packet.path.src_port = ports[i].number;
    for (size_t i = 0; i < message->msg_iovlen; i++) {
        if (size + message->msg_iov[i].iov_len > sizeof bytes)
            abort();
        memcpy(bytes + size, message->msg_iov[i].iov_base, message->msg_iov[i].iov_len);
        size += message->msg_iov[i].iov_len;
    }
    for (struct cmsghdr *c = CMSG_FIRSTHDR(message); c; c = CMSG_NXTHDR((struct msghdr *)message, c)) {
        if (c->cmsg_level == IPPROTO_IP && c->cmsg_type == IP_TOS)
            packet.tos = *CMSG_DATA(c);
        else if (c->cmsg_level == IPPROTO_IPV6 && c->cmsg_type == IPV6_TCLASS)
            packet.tos = *CMSG_DATA(c);
        else if (c->cmsg_level == SOL_UDP && c->cmsg_type == UDP_SEGMENT) {
            uint16_t n;
            memcpy(&n, CMSG_DATA(c), sizeof n);
            segment = n;
        }
    }
    for (size_t at = 0; at < size; at += packet.size) {
        packet.size = segment && segment < size - at ? segment : size - at;
        if (packet.size > NET_MAX_BYTES)
            abort();
        memcpy(packet.bytes, bytes + at, packet.size);
        net_out(&packet);
        packet.id++; /* as the kernel counts them */
    }
    return size;
}

static bool has_room(void)
{
    const bool has = net_room;

    net_room -= has && net_room != UINT_MAX;
    return has;
}

int net_sendmmsg(int fd, struct mmsghdr *messages, unsigned int count, int flags)
{
    unsigned int n = 0;

    (void)flags;
    for (; n < count && has_room(); n++)
        messages[n].msg_len = (unsigned int)send_one(fd, &messages[n].msg_hdr);
    if (n)
        return (int)n;
    errno = EAGAIN;
    return -1;
}

ssize_t net_sendmsg(int fd, const struct msghdr *message, int flags)
{
    const struct sockaddr *to = message->msg_name;

    if (!to || !is_ip(to->sa_family))
        return sendmsg(fd, message, flags);
    if (has_room())
        return (ssize_t)send_one(fd, message);
    errno = EAGAIN;
    return -1;
}

ssize_t net_sendto(int fd, const void *bytes, size_t size, int flags, const struct sockaddr *to,
                   socklen_t length)
{
    struct iovec iov = {(void *)(uintptr_t)bytes, size};
    const struct msghdr message = {
        .msg_name = (void *)(uintptr_t)to, .msg_namelen = length, .msg_iov = &iov, .msg_iovlen = 1};

    return net_sendmsg(fd, &message, flags);
}

/* ---- time ------------------------------------------------------------------------------------------- */

/* The same in each run. */
ssize_t net_getrandom(void *to, size_t size, unsigned int flags)
{
    static uint32_t state = 1;

    (void)flags;
    for (size_t i = 0; i < size; i++) {
        state = state * 1664525 + 1013904223;
        ((uint8_t *)to)[i] = (uint8_t)(state >> 24);
    }
    return (ssize_t)size;
}

int net_clock_gettime(clockid_t clock, struct timespec *now)
{
    (void)clock;
    net_now += net_tick;
    *now =
        (struct timespec){.tv_sec = (time_t)(net_now / 1000000000), .tv_nsec = (long)(net_now % 1000000000)};
    return 0;
}

/* The fuzzer checks deadlines itself. */
int net_timerfd_settime(int fd, int flags, const struct itimerspec *new, struct itimerspec *old)
{
    (void)fd, (void)flags, (void)new, (void)old;
    return 0;
}

/* ---- threads ------------------------------------------------------------------------------------------ */

static void *(*kept)(void *);

int net_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*run)(void *), void *argument)
{
    if (!net_one_thread)
        return pthread_create(thread, attr, run, argument);
    kept = run;
    *thread = pthread_self();
    return 0;
}

int net_epoll_wait(int fd, struct epoll_event *events, int most, int timeout)
{
    const int n = epoll_wait(fd, events, most, net_one_thread ? 0 : timeout);

    if (net_one_thread && n <= 0)
        atomic_store(&soft_proc.stop, true);
    return n;
}

void net_run_thread(void)
{
    atomic_store(&soft_proc.stop, false);
    kept(NULL);
}

/* ---- memory of peers ---------------------------------------------------------------------------------- */

/* They are in the fuzzer's own process. */
static uint8_t *of_peer(const struct iovec *there)
{
    const uintptr_t at = (uintptr_t)there->iov_base - (uintptr_t)net_peer_memory;

    errno = EFAULT;
    return at <= net_peer_bytes && there->iov_len <= net_peer_bytes - at ? net_peer_memory + at : NULL;
}

ssize_t net_process_vm_readv(pid_t pid, const struct iovec *here, unsigned long nhere,
                             const struct iovec *there, unsigned long nthere, unsigned long flags)
{
    const uint8_t *from = of_peer(there);

    (void)pid, (void)nthere, (void)flags;
    for (unsigned long i = 0; from && i < nhere; from += here[i++].iov_len)
        memcpy(here[i].iov_base, from, here[i].iov_len);
    return from ? (ssize_t)there->iov_len : -1;
}

ssize_t net_process_vm_writev(pid_t pid, const struct iovec *here, unsigned long nhere,
                              const struct iovec *there, unsigned long nthere, unsigned long flags)
{
    uint8_t *to = of_peer(there);

    (void)pid, (void)nthere, (void)flags;
    for (unsigned long i = 0; to && i < nhere; to += here[i++].iov_len)
        memcpy(to, here[i].iov_base, here[i].iov_len);
    return to ? (ssize_t)there->iov_len : -1;
}
