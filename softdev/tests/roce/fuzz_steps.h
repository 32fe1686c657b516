/* The input of the receiver's fuzzer: a list of steps of sixteen bytes, most of which are a packet each.
 * Fields give meanings ("the PSN that is expected next, plus one"), so that mutated bytes still make
 * packets that get far; lengths, pads and checksums are right unless a step asks for wrong ones. */
#ifndef SOFTDEV_TESTS_FUZZ_STEPS_H
#define SOFTDEV_TESTS_FUZZ_STEPS_H

#include <stdint.h>

enum { STEP_BYTES = 16, STEPS = 48 };

struct step {
    uint8_t act;    /* enum act, modulo ACTS */
    uint8_t who;    /* enum who, modulo WHO */
    uint8_t opcode; /* of the packet, or of the work request */
    uint8_t flags;  /* FLAG_... */
    uint8_t from;   /* enum from, modulo FROMS */
    uint8_t base;   /* enum base, modulo BASES: what psn counts from */
    int8_t psn;
    uint8_t region;  /* enum region, modulo REGIONS */
    int16_t offset;  /* in that region */
    uint16_t length; /* of the message */
    uint8_t payload; /* of the packet: 0 for the right length, otherwise a multiple of 5 bytes */
    uint8_t value;   /* syndrome, immediate, queue key, operands, time ... */
    uint16_t raw;    /* xored into the packet at `value` if FLAG_RAW; otherwise its IPv4 number */
};
_Static_assert(sizeof(struct step) == STEP_BYTES, "no holes");

enum act {
    ACT_PACKET, /* and 1 to 7 */
    ACT_POST_SEND = 8,
    ACT_POST_RECV,
    ACT_TIME,       /* time passes and, if FLAG_RAW, sockets accept few packets from now on */
    ACT_BYSTANDERS, /* they exchange messages */
    ACT_STATE,      /* of the queue pair: error, reset, drained, connected again */
    ACT_REGION,     /* a region is closed, or opened again with another key */
    ACT_POLL,
    ACT_NONSENSE, /* the step's own bytes, repeated, as a packet */
    ACTS,
};
enum who { WHO_RC, WHO_RC6, WHO_UC, WHO_UD, WHO_SRQ, WHO_INIT, WHO_BYSTANDER, WHO_NOBODY, WHO };
enum from { FROM_PEER, FROM_PEER_OWN, FROM_PEER_OTHER, FROM_STRANGER, FROM_HERE, FROM_FORWARDED, FROMS };
enum base { BASE_EXPECTED, BASE_UNA, BASE_NEXT, BASE_ABSOLUTE, BASES };
enum region { REGION_OPEN, REGION_READ_ONLY, REGION_LOCAL, REGION_BYSTANDER, REGION_NONE, REGIONS };
enum {
    FLAG_SOLICITED = 1,
    FLAG_ACK = 2,
    FLAG_BAD_ICRC = 4,
    FLAG_MARKED = 8,
    FLAG_BECN = 16,
    FLAG_RAW = 32,
    FLAG_SHORT = 64, /* four bytes too short */
    FLAG_LONG = 128, /* four bytes too long */
};

#endif
