/* libFuzzer: for any input, parsing stays inside it, and a parsed packet packs to the same bytes. */
#include <stdlib.h>
#include <string.h>

#include "roce/packet.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct roce_packet packet;
    uint8_t head[ROCE_MAX_HEADERS];
    volatile uint8_t sum = 0;

    if (roce_parse(data, size, &packet) != ROCE_OK)
        return 0;
    for (uint32_t i = 0; i < packet.payload_length; i++)
        sum ^= packet.payload[i];
    (void)sum;
    const size_t n = roce_pack_headers(&packet, head);
    if (n + packet.payload_length + roce_pad(packet.payload_length) > size || data + n != packet.payload)
        abort();
    /* Reserved bits are not kept; all others are. */
    if (head[0] != data[0] || memcmp(head + 5, data + 5, 3) != 0 || memcmp(head + 9, data + 9, 3) != 0)
        abort();
    return 0;
}
