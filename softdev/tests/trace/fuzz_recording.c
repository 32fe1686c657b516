/* libFuzzer: for any file, reading, explaining, counting, printing and exporting stay inside it.
 *
 * A recording has 70 MB, most of them never written. The input is laid out as its parts that matter: the header, the
 * headers of four rings, and records, of which each ring has an equal share and beyond its share the same again. */
#include <stdlib.h>
#include <string.h>

#include "trace/explain/packets.h"
#include "trace/explain/rates.h"
#include "trace/meter/meter.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum {
    USED = 4,
    RINGS_AT = sizeof(struct trace_header),
    RECORDS_AT = RINGS_AT + USED * sizeof(struct trace_ring)
};

struct input {
    const uint8_t *data;
    size_t size;
    unsigned part;
};

static void copy(const struct input *in, size_t at, void *to, size_t length)
{
    const size_t there = at < in->size ? in->size - at : 0;

    memset(to, 0, length);
    memcpy(to, in->data + at, there < length ? there : length);
}

static bool fetch(void *file, uint64_t offset, void *to, size_t length)
{
    const struct input *in = file;

    if (offset < TRACE_HEADER_BYTES) {
        copy(in, (size_t)offset, to, length);
        return offset + length <= RINGS_AT;
    }
    if (offset < trace_ring_offset(0)) {
        /* One, or all: whole ones. */
        for (size_t done = 0; done + sizeof(struct trace_ring) <= length; done += sizeof(struct trace_ring)) {
            const size_t ring = (size_t)(offset + done - TRACE_HEADER_BYTES) / sizeof(struct trace_ring);
            struct trace_ring header = {0};

            if (ring < USED) {
                copy(in, RINGS_AT + ring * sizeof header, &header, sizeof header);
                header.head %= 300000;    /* as many as may be, but no more */
                header.head >>= in->part; /* of a file that grows */
            }
            memcpy((char *)to + done, &header, sizeof header);
        }
        return true;
    }
    const size_t records = in->size > RECORDS_AT ? (in->size - RECORDS_AT) / sizeof(struct trace_record) : 0;
    for (size_t i = 0; i < length / sizeof(struct trace_record); i++) {
        struct trace_record *one = (struct trace_record *)to + i;
        const uint64_t n = (offset - trace_ring_offset(0)) / sizeof *one + i;

        /* Few are enough: the rest are of a kind that is none. */
        memset(one, 0, sizeof *one);
        if (records && n % TRACE_THREAD_RECORDS < 64)
            copy(in, RECORDS_AT + (size_t)(n % records) * sizeof *one, one, sizeof *one);
    }
    return true;
}

/* As a whole, and as a file that is read on while it grows. */
static void count(FILE *to, const struct trace_recording *recording, const struct findings *findings,
                  struct input *in)
{
    struct follower follower;
    struct meter whole, *meters[] = {&whole};

    if (meter_tell(&whole, recording)) {
        meters_print(to, meters, 1);
        meters_print_findings(to, findings);
    }
    meter_free(&whole);
    if (!follow_begin(&follower, fetch, in)) {
        meters[0] = &follower.meter;
        for (in->part = 3; in->part > 0; in->part--)
            follow(&follower, false);
        meters_print(to, meters, 1);
        follow(&follower, true);
        meters_print(to, meters, 1);
    }
    follow_free(&follower);
}

/* Whatever was recorded, the capture has whole blocks, and packets whose IP header says how long they are. */
static void capture(const struct story *story)
{
    enum { PACKET = 6, FIXED = 28 };
    uint32_t type, total, end, kept;
    size_t length = 0, alone, at = 0;
    char *bytes = NULL;
    FILE *to = open_memstream(&bytes, &length);

    packets(to, story, 1, &alone);
    fclose(to);
    for (; at < length; at += total) {
        if (length - at < 12)
            abort();
        memcpy(&type, bytes + at, 4);
        memcpy(&total, bytes + at + 4, 4);
        if (total % 4 || total < 12 || total > length - at)
            abort();
        memcpy(&end, bytes + at + total - 4, 4);
        if (end != total)
            abort();
        if (type != PACKET)
            continue;
        memcpy(&kept, bytes + at + 20, 4);
        const uint8_t *ip = (const uint8_t *)bytes + at + FIXED;
        const bool four = *ip >> 4 == 4;
        if (total < FIXED + kept || kept != (four ? ip[2] * 256U + ip[3] : ip[4] * 256U + ip[5] + 40))
            abort();
    }
    free(bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct input in = {.data = data, .size = size};
    struct trace_recording recording;
    struct story story;
    struct findings findings = {0};
    char *text = NULL;
    size_t length = 0;

    if (trace_load(&recording, fetch, &in, NULL)) {
        trace_free(&recording);
        return 0;
    }
    if (story_tell(&story, &recording)) {
        FILE *to = open_memstream(&text, &length);

        for (size_t i = 0; i < recording.count; i++)
            trace_print(to, &recording, &recording.items[i]);
        explain(&findings, &story, 1, 1);
        explain_print(to, &findings);
        rates_print(to, &story, story.end, UINT64_MAX);
        count(to, &recording, &findings, &in);
        timeline(to, &story, 1);
        capture(&story);
        fclose(to);
        free(text);
        findings_free(&findings);
    }
    story_free(&story);
    trace_free(&recording);
    return 0;
}
