/* RoCEv2 packets byte by byte: packets of other devices, our own, and invalid ones. */
#include <stdio.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

#include "roce/icrc.h"
#include "roce/packet.h"
#include "rxe_packets.h"
#include "tests/harness.h"

static void from_hex(const char *hex, uint8_t *to)
{
    for (unsigned int byte; sscanf(hex, "%2x", &byte) == 1; hex += 2)
        *to++ = (uint8_t)byte;
}

static uint32_t stored(const uint8_t *icrc)
{
    return icrc[0] | (uint32_t)icrc[1] << 8 | (uint32_t)icrc[2] << 16 | (uint32_t)icrc[3] << 24;
}

static struct roce_path path_of(const uint8_t *ip)
{
    struct roce_path path = {.src = {[10] = 0xff, [11] = 0xff}, .dst = {[10] = 0xff, [11] = 0xff}};

    memcpy(path.src + 12, ip + 12, 4);
    memcpy(path.dst + 12, ip + 16, 4);
    path.src_port = (uint16_t)(ip[20] << 8 | ip[21]);
    path.dst_port = (uint16_t)(ip[22] << 8 | ip[23]);
    return path;
}

static bool finds(const struct roce_path *path, const uint8_t *bytes, size_t size, uint32_t stored,
                  struct roce_ipv4 *found)
{
    return roce_icrc_find(stored ^ roce_icrc(path, bytes, size), size, found);
}

/* An IPv4 packet with its header: parses its RoCE part and checks the ICRC. */
static void check_ipv4(const uint8_t *ip, size_t size, struct roce_packet *packet)
{
    const struct roce_path path = path_of(ip);
    const struct roce_ipv4 header = {(uint16_t)(ip[4] << 8 | ip[5]), !(ip[6] & 0x40)};
    struct roce_ipv4 found = {0};

    CHECK(size > 28 + ROCE_BTH);
    CHECK_EQ(path.dst_port, ROCE_PORT);
    CHECK_EQ(roce_parse(ip + 28, size - 28, packet), ROCE_OK);
    CHECK_EQ(roce_icrc_ipv4(&path, header, ip + 28, size - 32), stored(ip + size - 4));
    CHECK(finds(&path, ip + 28, size - 32, stored(ip + size - 4), &found));
    CHECK_EQ(found.id, header.id);
}

static size_t rxe_packet(size_t i, uint8_t *ip)
{
    const size_t head = strlen(rxe_packets[i].head) / 2, counted = rxe_packets[i].counted;

    from_hex(rxe_packets[i].head, ip);
    for (size_t k = 0; k < counted; k++)
        ip[head + k] = (uint8_t)k;
    from_hex(rxe_packets[i].tail, ip + head + counted);
    return head + counted + strlen(rxe_packets[i].tail) / 2;
}

/* The two public packets of ConnectX adapters (in the tests of scapy's RoCE layer). */
static void adapters(void)
{
    static const char cnp[] = "45c2003c718c4000401191610a0011010a001201000012b7002800008100ffff4000"
                              "011800000000000000000000000000000000000000"
                              "0082fd002a";
    static const char uc[] = "4501004004784000"
                             "4011b4d5c0a80007c0a80007"
                             "c00012b7002caca2"
                             "2460ffff000000d300cf1710"
                             "4630818be28935d90e9a95505401be885e500000"
                             "78f353f3";
    struct roce_packet packet;
    uint8_t bytes[64];

    from_hex(cnp, bytes);
    check_ipv4(bytes, 60, &packet);
    CHECK_EQ(packet.opcode, ROCE_CNP_OPCODE);
    CHECK(packet.becn && !packet.fecn && !packet.ack_request);
    CHECK_EQ(packet.qpn, 0x118);
    CHECK_EQ(packet.payload_length, ROCE_CNP_BYTES);
    from_hex(uc, bytes);
    check_ipv4(bytes, 64, &packet);
    CHECK_EQ(packet.opcode, ROCE_UC | ROCE_SEND_ONLY);
    CHECK(packet.migrated);
    CHECK_EQ(packet.qpn, 211);
    CHECK_EQ(packet.psn, 13571856);
    CHECK_EQ(packet.payload_length, 18);
}

/* Packets that the kernel's rxe sent: every opcode it has, every ICRC, and our own packing of the same
 * headers. */
static void rxe(void)
{
    static uint8_t ip[1200];
    unsigned int opcodes = 0;
    uint32_t seen = 0;

    for (size_t i = 0; i < sizeof rxe_packets / sizeof *rxe_packets; i++) {
        const size_t size = rxe_packet(i, ip);
        struct roce_packet packet;
        uint8_t head[ROCE_MAX_HEADERS];

        check_ipv4(ip, size, &packet);
        const size_t n = roce_pack_headers(&packet, head);
        CHECK(!memcmp(head, ip + 28, n));
        CHECK(packet.payload == ip + 28 + n);
        CHECK_EQ(28 + n + packet.payload_length + roce_pad(packet.payload_length) + ROCE_ICRC, size);
        opcodes += !(seen & 1u << (packet.opcode & 31));
        seen |= 1u << (packet.opcode & 31);
    }
    CHECK_EQ(opcodes, 20);
}

/* Without the IPv4 header: the search finds its fields, and finds nothing for a packet with a changed bit. */
static void identification(void)
{
    static uint8_t ip[1200];
    unsigned int passed = 0, tried = 0;

    for (size_t i = 0; i < sizeof rxe_packets / sizeof *rxe_packets; i++) {
        const size_t size = rxe_packet(i, ip), n = size - 28 - ROCE_ICRC;
        const struct roce_path path = path_of(ip);
        struct roce_ipv4 found = {0};

        CHECK(finds(&path, ip + 28, n, stored(ip + size - 4), &found));
        CHECK_EQ(found.id, ip[4] << 8 | ip[5]);
        CHECK_EQ(found.may_fragment, !(ip[6] & 0x40));
        for (size_t bit = 0; bit < n * 8; bit++) {
            if (bit / 8 == 4)
                continue; /* congestion marks are not covered */
            ip[28 + bit / 8] ^= (uint8_t)(1 << bit % 8);
            passed += finds(&path, ip + 28, n, stored(ip + size - 4), &found);
            ip[28 + bit / 8] ^= (uint8_t)(1 << bit % 8);
            tried++;
        }
    }
    CHECK(tried > 50000);
    CHECK(passed <= tried / 2000); /* one in 2^15, by design, and one that passes in each long packet */
}

/* Any header, and any length of packet. */
static void any_identification(void)
{
    static uint8_t bytes[ROCE_MAX_PACKET];
    struct roce_path path = {.src = {[10] = 0xff, [11] = 0xff, 10, 0, 0, 1},
                             .dst = {[10] = 0xff, [11] = 0xff, 10, 0, 0, 2},
                             .src_port = 50000,
                             .dst_port = ROCE_PORT};
    uint32_t state = 3;

    fill(bytes, sizeof bytes, 4);
    for (size_t size = ROCE_BTH; size <= sizeof bytes - ROCE_ICRC; size += 4) {
        const struct roce_ipv4 ip = {(uint16_t)test_random(&state), test_random(&state) % 2};
        struct roce_ipv4 found = {0};
        const uint32_t icrc = roce_icrc_ipv4(&path, ip, bytes, size);

        CHECK(finds(&path, bytes, size, icrc, &found));
        CHECK_EQ(found.id, ip.id);
        CHECK_EQ(found.may_fragment, ip.may_fragment);
    }
}

/* Behind a packet: right for its identification and no other, whatever the guess. */
static void numbered(void)
{
    uint8_t bytes[80];
    struct roce_path path = {.src = {[10] = 0xff, [11] = 0xff, 10, 0, 0, 1},
                             .dst = {[10] = 0xff, [11] = 0xff, 10, 0, 0, 2},
                             .src_port = ROCE_PORT,
                             .dst_port = ROCE_PORT};
    const struct roce_path v6 = {
        .src = {0xfd, 1}, .dst = {0xfd, 2}, .src_port = ROCE_PORT, .dst_port = ROCE_PORT};
    struct roce_ipv4 found;

    fill(bytes, sizeof bytes, 6);
    for (uint16_t id = 0; id < 64; id++)
        for (uint16_t guess = 0; guess < 64; guess++) {
            const uint32_t icrc =
                roce_icrc_ipv4(&path, (struct roce_ipv4){.id = id}, bytes, sizeof bytes - 4);
            memcpy(bytes + sizeof bytes - 4, &icrc, 4);
            CHECK(roce_icrc_check(&path, bytes, sizeof bytes, guess, &found));
            CHECK_EQ(found.id, id);
            CHECK(!found.may_fragment);
            if (guess != id)
                continue;
            bytes[20] ^= 4;
            CHECK(!roce_icrc_check(&path, bytes, sizeof bytes, guess, &found) || found.id != id);
            bytes[20] ^= 4;
        }
    const uint32_t icrc = roce_icrc(&v6, bytes, sizeof bytes - 4);
    memcpy(bytes + sizeof bytes - 4, &icrc, 4);
    CHECK(roce_icrc_check(&v6, bytes, sizeof bytes, 9, &found));
    bytes[20] ^= 4;
    CHECK(!roce_icrc_check(&v6, bytes, sizeof bytes, 9, &found));
}

static void fast_crc_agrees(void)
{
    static uint8_t bytes[5000];
    uint32_t state = 7;

    CHECK_EQ(roce_crc(0xffffffff, "123456789", 9) ^ 0xffffffff, 0xcbf43926u);
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (uint8_t)test_random(&state);
    for (size_t size = 0; size < 700; size++)
        for (size_t offset = 0; offset < 17; offset += 4)
            CHECK_EQ(roce_crc((uint32_t)size, bytes + offset, size),
                     roce_crc_tables((uint32_t)size, bytes + offset, size));
    CHECK_EQ(roce_crc(1, bytes, sizeof bytes), roce_crc_tables(1, bytes, sizeof bytes));
}

/* A sanitizer's own code, which is called in between, leaves registers in use. */
#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
static bool tells_parts_in_use(void)
{
    enum { STATE = 0xd, TELLS = 1 << 2 };
    unsigned int a = 0, b, c, d;

    return __builtin_cpu_supports("avx") && __get_cpuid_count(STATE, 1, &a, &b, &c, &d) && (a & TELLS);
}

/* Of the registers' upper parts, those that may hold anything (XINUSE). */
__attribute__((target("xsave"))) static uint64_t parts_in_use(void)
{
    enum { UPPER_OF_256 = 1 << 2, UPPER_OF_512 = 1 << 6 };

    return _xgetbv(1) & (UPPER_OF_256 | UPPER_OF_512);
}

/* Other code may have left them in use. */
__attribute__((target("avx"))) static void clean_registers(void)
{
    _mm256_zeroupper();
}

/* Whether they are clean behind it, once at least: a processor may say that they are in use when they are not. */
static bool leaves_clean(const uint8_t *bytes, size_t size)
{
    enum { TRIES = 100 };
    unsigned told = 0;

    for (int i = 0; i < TRIES; i++) {
        clean_registers();
        if (parts_in_use())
            continue;
        told++;
        roce_crc(0, bytes, size);
        if (!parts_in_use())
            return true;
    }
    return !told;
}

/* Whoever leaves the upper parts of vector registers in use slows all code down that uses the lower ones. */
static void registers_are_left_clean(void)
{
    static uint8_t bytes[5000];

    for (size_t size = 0; size < sizeof bytes && tells_parts_in_use(); size += 100)
        CHECK(leaves_clean(bytes, size));
}
#else
static void registers_are_left_clean(void) {}
#endif

/* Congestion marks may change on the way, but no other field. */
static void what_is_covered(void)
{
    struct roce_path v4 = {.src = {[10] = 0xff, [11] = 0xff, 10, 0, 0, 1},
                           .dst = {[10] = 0xff, [11] = 0xff, 10, 0, 0, 2},
                           .src_port = 4791,
                           .dst_port = 4791};
    struct roce_path v6 = {.src = {0xfd}, .dst = {0xfd, 1}, .src_port = 4791, .dst_port = 4791};
    uint8_t bytes[64] = {4, 0x40, 0xff, 0xff, 0, 0, 0, 9, 0x80, 0, 0, 1};
    const uint32_t first = roce_icrc(&v4, bytes, sizeof bytes), first6 = roce_icrc(&v6, bytes, sizeof bytes);

    for (size_t i = 0; i < sizeof bytes; i++) {
        bytes[i] ^= 1;
        CHECK_EQ(roce_icrc(&v4, bytes, sizeof bytes) == first, i == 4);
        CHECK_EQ(roce_icrc(&v6, bytes, sizeof bytes) == first6, i == 4);
        bytes[i] ^= 1;
    }
    v4.src_port++;
    CHECK(roce_icrc(&v4, bytes, sizeof bytes) != first);
    v6.dst[15]++;
    CHECK(roce_icrc(&v6, bytes, sizeof bytes) != first6);
}

static void every_opcode(void)
{
    unsigned int known = 0;

    for (unsigned int opcode = 0; opcode < 256; opcode++) {
        const uint16_t traits = roce_traits((uint8_t)opcode);
        const uint32_t payload = traits & ROCE_HAS_PAYLOAD ? 5 : 0;
        struct roce_packet out = {.opcode = (uint8_t)opcode,
                                  .pkey = ROCE_PKEY,
                                  .qpn = 0x123456,
                                  .psn = 0xfedcba,
                                  .src_qpn = 0x654321,
                                  .qkey = 0x11223344,
                                  .addr = 0x1122334455667788,
                                  .rkey = 0x99aabbcc,
                                  .length = 0xddeeff00,
                                  .swap_add = 0x0102030405060708,
                                  .compare = 0x1112131415161718,
                                  .original = 0x2122232425262728,
                                  .syndrome = 0x2c,
                                  .msn = 0x313233,
                                  .imm = 0x41424344,
                                  .invalidate = 0x51525354,
                                  .solicited = opcode & 1,
                                  .ack_request = opcode & 2,
                                  .migrated = true,
                                  .payload_length = payload},
                           in;
        uint8_t bytes[128] = {0};

        if (!traits) {
            bytes[0] = (uint8_t)opcode;
            CHECK_EQ(roce_parse(bytes, sizeof bytes, &in), ROCE_BAD_OPCODE);
            continue;
        }
        known++;
        const size_t head = roce_pack_headers(&out, bytes),
                     size = head + payload + roce_pad(payload) + ROCE_ICRC;
        fill(bytes + head, payload, opcode);
        CHECK_EQ(roce_parse(bytes, size, &in), ROCE_OK);
        CHECK(holds(in.payload, payload, opcode));
        in.payload = NULL;
        uint8_t again[ROCE_MAX_HEADERS];
        CHECK_EQ(roce_pack_headers(&in, again), head);
        CHECK(!memcmp(again, bytes, head));
        for (size_t shorter = 0; shorter < head + ROCE_ICRC; shorter++)
            CHECK_EQ(roce_parse(bytes, shorter, &in), ROCE_TOO_SHORT);
        CHECK_EQ(roce_parse(bytes, size + 1, &in), ROCE_BAD_LENGTH);
        if (!payload)
            CHECK_EQ(roce_parse(bytes, size + 4, &in), ROCE_BAD_LENGTH);
        bytes[1] |= 1;
        CHECK_EQ(roce_parse(bytes, size, &in), ROCE_BAD_VERSION);
        bytes[1] &= 0xf0;
        bytes[3] = 0xfe;
        CHECK_EQ(roce_parse(bytes, size, &in), ROCE_BAD_PKEY);
    }
    CHECK_EQ(known, 23 + 12 + 2 + 1);
}

static void too_long(void)
{
    static uint8_t bytes[ROCE_BTH + ROCE_MAX_PAYLOAD + 8] = {ROCE_SEND_ONLY, 0x40, 0xff, 0xff};
    struct roce_packet packet;

    CHECK_EQ(roce_parse(bytes, ROCE_BTH + ROCE_MAX_PAYLOAD + ROCE_ICRC, &packet), ROCE_OK);
    CHECK_EQ(roce_parse(bytes, sizeof bytes, &packet), ROCE_BAD_LENGTH);
    bytes[1] = 0x70; /* a pad of three, and no payload to pad */
    CHECK_EQ(roce_parse(bytes, ROCE_BTH + ROCE_ICRC, &packet), ROCE_BAD_LENGTH);
}

static void sequence_numbers(void)
{
    CHECK_EQ(roce_psn_diff(0, 0xffffff), 1);
    CHECK_EQ(roce_psn_diff(0xffffff, 0), -1);
    CHECK_EQ(roce_psn_diff(5, 5), 0);
    CHECK_EQ(roce_psn_diff(0x7fffff, 0), 0x7fffff);
    CHECK_EQ(roce_psn_diff(0x800000, 0), -0x800000);
    CHECK_EQ(roce_psn_add(0xfffffe, 3), 1);
    CHECK_EQ(roce_packets(0, 1024), 1);
    CHECK_EQ(roce_packets(1024, 1024), 1);
    CHECK_EQ(roce_packets(1025, 1024), 2);
    CHECK_EQ(roce_packets(UINT32_MAX, 256), 1u << 24);
}

TEST_MAIN(TEST(adapters), TEST(rxe), TEST(identification), TEST(any_identification), TEST(numbered),
          TEST(fast_crc_agrees), TEST(registers_are_left_clean), TEST(what_is_covered), TEST(every_opcode),
          TEST(too_long), TEST(sequence_numbers))
