/* What the mutations of step lists (tests/fuzz_mutate.h) do to one step. */
#include "fuzz_steps.h"
#include "roce/packet.h"

#include "tests/fuzz_mutate.h"

/* A meaningful step. */
static struct step sensible(void)
{
    static const uint8_t requests[] = {
        ROCE_SEND_ONLY,     ROCE_SEND_FIRST,     ROCE_SEND_MIDDLE,  ROCE_SEND_LAST,    ROCE_SEND_LAST_IMM,
        ROCE_SEND_ONLY_IMM, ROCE_WRITE_FIRST,    ROCE_WRITE_MIDDLE, ROCE_WRITE_LAST,   ROCE_WRITE_LAST_IMM,
        ROCE_WRITE_ONLY,    ROCE_WRITE_ONLY_IMM, ROCE_READ_REQUEST, ROCE_COMPARE_SWAP, ROCE_FETCH_ADD,
        ROCE_SEND_LAST_INV, ROCE_SEND_ONLY_INV};
    static const uint8_t responses[] = {ROCE_ACK,       ROCE_READ_FIRST, ROCE_READ_MIDDLE,
                                        ROCE_READ_LAST, ROCE_READ_ONLY,  ROCE_ATOMIC_ACKNOWLEDGE};
    static const uint8_t syndromes[] = {0x1f, 0x00, 0x21, 0x2c, 0x60, 0x61, 0x62, 0x63, 0x64};
    static const uint16_t lengths[] = {0, 1, 8, 255, 256, 257, 512, 600, 1024, 4096, 8192};
    static const uint8_t others[] = {ACT_POST_SEND,  ACT_POST_SEND, ACT_POST_RECV, ACT_POST_RECV, ACT_TIME,
                                     ACT_BYSTANDERS, ACT_STATE,     ACT_REGION,    ACT_POLL};
    struct step s = {.act = (uint8_t)below(2), .who = (uint8_t)below(WHO), .flags = FLAG_ACK};

    s.length = lengths[below(sizeof lengths / sizeof *lengths)];
    switch (below(8)) {
    case 0:
    case 1:
    case 2:
        s.opcode = requests[below(sizeof requests)];
        s.value = (uint8_t)below(4);
        s.offset = (int16_t)(below(64) * 8);
        if (s.who % WHO == WHO_UC)
            s.opcode |= ROCE_UC;
        else if (s.who % WHO == WHO_UD)
            s.opcode = ROCE_UD | (below(2) ? ROCE_SEND_ONLY : ROCE_SEND_ONLY_IMM);
        break;
    case 3:
    case 4:
        s.opcode = responses[below(sizeof responses)];
        s.value = syndromes[s.opcode == ROCE_ACK ? below(sizeof syndromes) : 0];
        s.base = BASE_UNA;
        break;
    case 5:
        s.opcode = ROCE_CNP_OPCODE;
        s.flags = FLAG_BECN;
        break;
    default:
        s.act = others[below(sizeof others)];
        s.opcode = (uint8_t)below(8);
        s.value = (uint8_t)below(16);
        break;
    }
    return s;
}

static void change_field(struct step *s)
{
    switch (below(12)) {
    case 0: s->act = (uint8_t)below(ACTS); break;
    case 1: s->who = (uint8_t)below(WHO); break;
    case 2: s->opcode = (uint8_t)below(256); break;
    case 3: s->flags ^= (uint8_t)(1 << below(8)); break;
    case 4: s->from = (uint8_t)below(FROMS); break;
    case 5: s->base = (uint8_t)below(BASES); break;
    case 6: s->psn = (int8_t)(s->psn + (below(2) ? 1 : -1)); break;
    case 7: s->psn = (int8_t)below(256); break;
    case 8: s->region = (uint8_t)below(REGIONS); break;
    case 9: s->offset = (int16_t)below(65536); break;
    case 10: s->payload = (uint8_t)below(256); break;
    default: LLVMFuzzerMutate((uint8_t *)s, STEP_BYTES, STEP_BYTES); break;
    }
}
