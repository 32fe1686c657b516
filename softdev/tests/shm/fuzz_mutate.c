/* What the mutations of step lists (tests/fuzz_mutate.h) do to one step. */
#include "fuzz_steps.h"
#include "shm/lane.h"

#include "tests/fuzz_mutate.h"

static struct step record(void)
{
    static const uint16_t lengths[] = {0, 0, 8, 48, 100, 512, 513, 4096, 16384, 16385};
    enum { WHOLE = SOFT_REC_FIRST | SOFT_REC_LAST };
    struct step s = {
        .act = ACT_RECORD, .who = (uint8_t)below(WHO_INIT), .op = (uint8_t)(SOFT_OP_SEND + below(6))};

    s.bits = (uint8_t)(below(2) ? WHOLE : below(4));
    s.length = lengths[below(sizeof lengths / sizeof *lengths)];
    s.total = below(2) ? s.length : lengths[below(sizeof lengths / sizeof *lengths)];
    if (s.op == SOFT_OP_SEND && !below(4))
        s.bits |= below(2) ? SOFT_REC_IMM : SOFT_REC_INV;
    if (s.op != SOFT_OP_SEND && s.op != SOFT_OP_IMM)
        s.bits |= SOFT_REC_REMOTE;
    if (s.op == SOFT_OP_IMM)
        s.bits = WHOLE | SOFT_REC_IMM;
    if (s.op > SOFT_OP_IMM) {
        s.bits = WHOLE | SOFT_REC_REMOTE;
        s.total = s.length;
        s.length = 0;
    }
    s.region = (uint8_t)below(3);
    s.offset = (int16_t)(below(64) * 8);
    return s;
}

/* A meaningful step. */
static struct step sensible(void)
{
    static const uint8_t others[] = {ACT_POST_SEND, ACT_POST_RECV, ACT_TIME, ACT_BYSTANDERS,
                                     ACT_STATE,     ACT_REGION,    ACT_POLL, ACT_WORD,
                                     ACT_DOOR,      ACT_LINK,      ACT_FLOOD};
    struct step s = {.who = (uint8_t)below(WHO), .op = (uint8_t)below(16), .value = (uint8_t)below(16)};

    switch (below(8)) {
    case 0:
    case 1:
    case 2: return record();
    case 3: s.act = ACT_ATTACH; break;
    case 4:
        s.act = below(2) ? ACT_ANSWER : ACT_RESPONSE;
        s.bits = (uint8_t)below(4);
        s.length = (uint16_t)(below(3) * 8);
        s.handles = (uint8_t)(below(3) | HANDLE_NONE << 4);
        break;
    case 5:
        s.act = ACT_MESSAGE;
        s.handles = (uint8_t)below(256);
        s.bits = (uint8_t)below(16);
        s.flags = below(2) ? FLAG_OTHER : 0;
        break;
    default:
        s.act = others[below(sizeof others)];
        s.length = (uint16_t)below(1024);
        s.raw = (uint16_t)below(256);
        break;
    }
    return s;
}

static void change_field(struct step *s)
{
    switch (below(12)) {
    case 0: s->act = (uint8_t)below(ACTS); break;
    case 1: s->who = (uint8_t)below(WHO); break;
    case 2: s->op = (uint8_t)below(16); break;
    case 3: s->flags ^= (uint8_t)(1 << below(8)); break;
    case 4: s->bits ^= (uint8_t)(1 << below(6)); break;
    case 5: s->region = (uint8_t)below(REGIONS); break;
    case 6: s->handles = (uint8_t)below(256); break;
    case 7: s->value = (uint8_t)below(256); break;
    case 8: s->length = (uint16_t)below(65536); break;
    case 9: s->total = s->length; break;
    case 10: s->raw = (uint16_t)below(65536); break;
    default: LLVMFuzzerMutate((uint8_t *)s, STEP_BYTES, STEP_BYTES); break;
    }
}
