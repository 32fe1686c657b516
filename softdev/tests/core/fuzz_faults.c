/* libFuzzer: for any input, reading a request stays inside it and keeps its promises, and a plan is cut into
 * requests that end. The first byte says which. */
#include <stdlib.h>
#include <string.h>

#include "core/fault_words.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(const char *text, size_t size)
{
    struct soft_fault_words words;
    char why[SOFT_FAULT_WHY] = "";

    if (soft_fault_read(text, size, &words, why)) {
        if (!*why || !memchr(why, 0, sizeof(why)))
            abort();
        return;
    }
    if (words.device > SOFT_FAULT_DEVICES || words.gid >= SOFT_FAULT_GIDS || words.mtu > IBV_MTU_4096 ||
        words.qp > 0xffffff || words.chances >> SOFT_FAULT_KINDS)
        abort();
    for (int kind = 0; kind < SOFT_FAULT_KINDS; kind++)
        if (words.chance[kind] > UINT64_C(1) << 53 || (words.chance[kind] && !(words.chances >> kind & 1)))
            abort();
    if (words.every_ns && words.for_ns >= words.every_ns)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *text = (const char *)data + 1;
    char request[64];
    size_t at = 0, before = 0;

    if (!size)
        return 0;
    size--;
    if (data[0] & 1) {
        check(text, size);
        return 0;
    }
    while (at < size) {
        const size_t n = soft_fault_next(text, size, &at, request, sizeof(request));
        if (at > size || (at == before && at < size))
            abort();
        before = at;
        if (n <= sizeof(request))
            check(request, n);
    }
    return 0;
}
