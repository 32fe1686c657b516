/* Captures: checks the block structure, and the output of tshark where it is installed. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
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

static void blocks(void)
{
    static uint8_t file[1 << 16];
    char name[] = "/tmp/wire-capture-XXXXXX";
    int fd = mkstemp(name);
    unsigned int count = write_all(name), packets = 0;
    ssize_t size = read(fd, file, sizeof file);

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
    CHECK_EQ(packets, count);
    close(fd);
    unlink(name);
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

TEST_MAIN(TEST(blocks), TEST(not_writable), TEST(dissector))
