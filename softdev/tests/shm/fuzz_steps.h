/* The input of the fuzzer of shared memory: a list of steps of sixteen bytes, most of which are a record in a lane or a
 * message on a Unix link. Fields give meanings ("the queue pair that has a lane here"), so that mutated bytes still
 * make records and messages that get far. */
#ifndef SOFTDEV_TESTS_SHM_FUZZ_STEPS_H
#define SOFTDEV_TESTS_SHM_FUZZ_STEPS_H

#include <stdint.h>

enum { STEP_BYTES = 16, STEPS = 48 };

struct step {
    uint8_t act;     /* enum act, modulo ACTS */
    uint8_t who;     /* enum who, modulo WHO */
    uint8_t op;      /* of the record, the message or the work request */
    uint8_t bits;    /* of the record: SOFT_REC_... */
    uint8_t flags;   /* FLAG_... */
    uint8_t region;  /* enum region, modulo REGIONS */
    uint8_t handles; /* two of enum handle, modulo HANDLES: the descriptors of a message */
    uint8_t value;   /* attempt, queue, error, time ... */
    int16_t offset;  /* in the region, or of a field */
    uint16_t length; /* of the record */
    uint16_t total;  /* of the message, in units of the length's 1/1 or, if FLAG_LARGE, 64 KiB */
    uint16_t raw;    /* immediate, key, bits of a door ... */
};
_Static_assert(sizeof(struct step) == STEP_BYTES, "no holes");

enum act {
    ACT_RECORD,     /* and 1 to 3: a request in the lane to the queue pair */
    ACT_ATTACH = 4, /* asks for a lane, and takes it */
    ACT_ANSWER,     /* to the oldest message of the device: as a peer should, unless a flag says otherwise */
    ACT_RESPONSE,   /* a record in the other ring of the device's lane to the peer, and acknowledgements */
    ACT_MESSAGE,    /* any message */
    ACT_WORD,       /* any control word of a segment */
    ACT_DOOR,       /* any bits of the peer's doors, and a kick */
    ACT_POST_SEND,
    ACT_POST_RECV,
    ACT_TIME,
    ACT_BYSTANDERS, /* they exchange messages */
    ACT_STATE,      /* of the queue pair: error, reset and connected again, drained */
    ACT_REGION,     /* a region is closed, or opened again with another key */
    ACT_POLL,       /* and arms the queue */
    ACT_LINK,       /* one end of a link closes, or another link opens */
    ACT_FLOOD,      /* a message again and again, each time about something else, and no answer is read */
    ACTS,
};
enum who { WHO_RC, WHO_SRQ, WHO_UC, WHO_UD, WHO_INIT, WHO };
enum region {
    REGION_OPEN,
    REGION_SLAB,
    REGION_READ_ONLY,
    REGION_LOCAL,
    REGION_BYSTANDER,
    REGION_NONE,
    REGIONS
};
enum handle {
    HANDLE_RIGHT, /* of a message to be answered; otherwise none */
    HANDLE_NONE,
    HANDLE_SEGMENT,
    HANDLE_SMALL,    /* a segment too short */
    HANDLE_UNSEALED, /* one that could shrink */
    HANDLE_PIPE,
    HANDLE_PIPE_END, /* to read from */
    HANDLE_NULL,     /* no segment and no pipe */
    HANDLES,
};
enum {
    FLAG_KEEP = 1, /* written, and not published; sent, and not handled */
    FLAG_LARGE = 2,
    FLAG_LIE = 4,    /* the record says it is longer than it is */
    FLAG_BACK = 8,   /* over the record before it; answers of a flood are read */
    FLAG_OTHER = 16, /* the other link; the other process's queue pair */
    FLAG_WRONG = 32, /* not the answer that is due; a raw number in place of the right one */
    FLAG_POLL = 64,  /* the program polls, instead of its progress thread */
    FLAG_INLINE = 128,
};

#endif
