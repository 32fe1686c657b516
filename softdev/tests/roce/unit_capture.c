/* Captures: checks the block structure, and the output of tshark where it is installed. */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "roce/capture.h"
#include "roce/packet.h"
#include "tests/harness.h"

static const struct roce_path v4 = {.src = {[10] = 0xff, [11] = 0xff, 10, 0, 0, 1},
                                    .dst = {[10] = 0xff, [11] = 0xff, 10, 0, 0, 2},
                                    .src_port = ROCE_PORT,
                                    .dst_port = ROCE_PORT};
static const struct roce_path v6 = {
    .src = {0xfd, [15] = 1}, .dst = {0xfd, [15] = 2}, .src_port = 50000, .dst_port = ROCE_PORT};

static size_t make(const struct roce_path *path, struct roce_packet *packet, uint8_t *to)
{
    size_t n;

    packet->pkey = ROCE_PKEY;
    packet->migrated = true;
    n = roce_pack_headers(packet, to);
    fill(to + n, packet->payload_length, 3);
    n += packet->payload_length;
    memset(to + n, 0, roce_pad(packet->payload_length));
    n += roce_pad(packet->payload_length);
    const uint32_t icrc = roce_icrc(path, to, n);
    for (int i = 0; i < 4; i++)
        to[n + i] = (uint8_t)(icrc >> 8 * i);
    return n + 4;
}

/* One packet of each kind over IPv4 and IPv6. Returns how many. */
static unsigned int write_all(const char *name)
{
    struct roce_capture *capture = roce_capture_open(name);
    unsigned int count = 0;

    CHECK(capture);
    for (int family = 0; family < 2; family++) {
        const struct roce_path *path = family ? &v6 : &v4;
        for (unsigned int opcode = 0; opcode < 256; opcode++) {
            const uint16_t traits = roce_traits((uint8_t)opcode);
            struct roce_packet packet = {.opcode = (uint8_t)opcode,
                                         .qpn = 17,
                                         .psn = opcode,
                                         .src_qpn = 18,
                                         .payload_length = opcode == ROCE_CNP_OPCODE   ? ROCE_CNP_BYTES
                                                           : traits & ROCE_HAS_PAYLOAD ? 9
                                                                                       : 0};
            uint8_t bytes[256];

            if (!traits)
                continue;
            const size_t size = make(path, &packet, bytes);
            const struct roce_capture_origin origin = {.path = path, .tos = 0xba, .inbound = opcode % 2};
            CHECK(roce_capture_packet(capture, &origin, 1700000000123456789 + opcode, bytes, size));
            count++;
        }
    }
    roce_capture_close(capture);
    return count;
}

/* How many packets the file has, which consists of whole blocks. */
static unsigned int count_packets(const char *name)
{
    static uint8_t file[1 << 16];
    const int fd = open(name, O_RDONLY | O_CLOEXEC);
    const ssize_t size = read(fd, file, sizeof file);
    unsigned int packets = 0;

    CHECK(size > 60);
    for (size_t at = 0; at < (size_t)size;) {
        uint32_t head[2], tail;
        memcpy(head, file + at, sizeof head);
        CHECK(head[1] % 4 == 0 && head[1] >= 12 && at + head[1] <= (size_t)size);
        memcpy(&tail, file + at + head[1] - 4, sizeof tail);
        CHECK_EQ(tail, head[1]);
        packets += head[0] == 6;
        at += head[1];
    }
    close(fd);
    return packets;
}

static void blocks(void)
{
    char name[] = "/tmp/wire-capture-XXXXXX";

    close(mkstemp(name));
    unsigned int count = write_all(name);
    CHECK_EQ(count_packets(name), count);
    unlink(name);
}

/* Who may read it, and what was there before: another user may have put that there, or have it open. */
static void the_users_alone(void)
{
    char folder[] = "/tmp/wire-capture-XXXXXX", name[64], other[64], byte;
    struct stat st;
    const mode_t mask = umask(0);

    CHECK(mkdtemp(folder));
    snprintf(name, sizeof name, "%s/it", folder);
    snprintf(other, sizeof other, "%s/other", folder);
    int before = open(name, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    CHECK(before >= 0);
    write_all(name);
    CHECK(!stat(name, &st));
    CHECK_EQ(st.st_mode & 0777, 0600);
    CHECK_EQ(read(before, &byte, 1), 0);
    close(before);
    unlink(name);

    CHECK(!symlink(other, name));
    CHECK(!roce_capture_open(name));
    CHECK_EQ(errno, ELOOP);
    CHECK(stat(other, &st));
    unlink(name);

    CHECK(!mkfifo(name, 0600));
    CHECK(!roce_capture_open(name));
    CHECK_EQ(errno, EPERM);
    unlink(name);

    before = open(name, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (!fchown(before, 65534, 65534) && geteuid() == 0) {
        CHECK(!roce_capture_open(name));
        CHECK_EQ(errno, EPERM);
    }
    close(before);
    unlink(name);
    rmdir(folder);
    umask(mask);
}

/* Writes until that fails; what is there then is whole. */
static int write_until_full(const char *name)
{
    struct roce_capture *capture = roce_capture_open(name);
    struct roce_packet packet = {.opcode = 4, .qpn = 17, .src_qpn = 18, .payload_length = 100};
    uint8_t bytes[256];
    unsigned int count = 0;

    CHECK(capture);
    const size_t size = make(&v4, &packet, bytes);
    const struct roce_capture_origin origin = {.path = &v4};
    while (roce_capture_packet(capture, &origin, 1, bytes, size))
        count++;
    CHECK(!roce_capture_packet(capture, &origin, 1, bytes, size));
    roce_capture_close(capture);
    CHECK(count);
    CHECK_EQ(count_packets(name), count);
    return 0;
}

static int on_a_full_disk(const char *folder)
{
    char name[64];

    if (unshare(CLONE_NEWNS) || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
        mount("none", folder, "tmpfs", 0, "size=8k"))
        return 77;
    snprintf(name, sizeof name, "%s/it", folder);
    return write_until_full(name);
}

static int beyond_the_limit(const char *folder)
{
    const struct rlimit limit = {5000, 5000};
    char name[64];

    signal(SIGXFSZ, SIG_DFL);
    CHECK(!setrlimit(RLIMIT_FSIZE, &limit));
    snprintf(name, sizeof name, "%s/it", folder);
    const int status = write_until_full(name);
    unlink(name);
    return status;
}

/* In a process of its own: no signal ends it. */
static void no_room(void)
{
    static int (*const ways[])(const char *) = {on_a_full_disk, beyond_the_limit};
    char folder[] = "/tmp/wire-capture-XXXXXX";
    int status;

    CHECK(mkdtemp(folder));
    for (int i = 0; i < 2; i++) {
        const pid_t child = fork();
        if (!child)
            _exit(ways[i](folder));
        CHECK_EQ(waitpid(child, &status, 0), child);
        if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
            puts("  left out: this user cannot mount anything");
        else
            CHECK_EQ(status, 0);
    }
    rmdir(folder);
}

static void not_writable(void)
{
    CHECK(!roce_capture_open("/nonexistent/x"));
    struct roce_capture *capture = roce_capture_open("/dev/full");
    CHECK(!capture);
}

/* tshark must recognise every packet as RoCE with correct checksums, none malformed. It must not guess at
 * the payload. */
static void dissector(void)
{
    char name[] = "/tmp/wire-capture-XXXXXX", command[512], line[256];
    unsigned int lines = 0;

    if (system("command -v tshark >/dev/null 2>&1") != 0) {
        puts("tshark is not installed: not looked at with it");
        return;
    }
    close(mkstemp(name));
    const unsigned int count = write_all(name);
    snprintf(
        command, sizeof command,
        "tshark --disable-protocol rpcordma -o ip.check_checksum:TRUE -o udp.check_checksum:TRUE -r %s -Y "
        "'infiniband && !_ws.malformed && !(ip.checksum.status == 0) && !(udp.checksum.status == 0)' "
        "2>/dev/null",
        name);
    FILE *out = popen(command, "r");
    CHECK(out);
    while (fgets(line, sizeof line, out))
        lines++;
    CHECK_EQ(pclose(out), 0);
    CHECK_EQ(lines, count);
    unlink(name);
}

TEST_MAIN(TEST(blocks), TEST(the_users_alone), TEST(no_room), TEST(not_writable), TEST(dissector))
