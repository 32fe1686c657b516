/*
 * Single packets between requester and responder, delivered one at a time: requests, responses, and the
 * reaction to missing, refused, repeated or invalid packets.
 */
#include "sides.h"

static uint64_t now;

static void quiet_pair(uint32_t mtu)
{
    now = 0;
    side_open(&one, &two, true, mtu, 100, 200);
    side_open(&two, &one, true, mtu, 200, 100);
    one.ask.retry_cnt = 2;
    one.ask.rnr_retry = one.ask.rnr_retries = 2;
}

static void quiet_pair_of_unreliable(void)
{
    side_open(&one, &two, false, 1024, 100, 200);
    side_open(&two, &one, false, 1024, 200, 100);
}

static struct roce_request request_of(struct roce_ask *ask)
{
    struct roce_request r;

    CHECK(roce_ask_next(ask, now, &r));
    return r;
}

static struct roce_packet answer_of(struct roce_answer *answer)
{
    struct roce_packet p;

    CHECK(roce_answer_next(answer, &p));
    return p;
}

static void nothing_more(void)
{
    struct roce_request r;
    struct roce_packet p;

    CHECK(!roce_ask_next(&one.ask, now, &r));
    CHECK(!roce_answer_next(&two.answer, &p));
}

static void post(uint8_t opcode, uint32_t length, uint64_t addr, uint32_t rkey)
{
    const struct roce_message m = {.opcode = opcode, .length = length, .addr = addr, .rkey = rkey};

    one.queued[one.ask.tail % QUEUE] = (struct sent){.opcode = opcode, .length = length};
    if (opcode == IBV_WR_SEND)
        one.log[one.nsent++] = one.queued[one.ask.tail % QUEUE];
    roce_ask_post(&one.ask, &m);
}

/* No answer arrives: retransmits that many times. */
static void say_again(int times)
{
    for (int i = 0; i < times; i++) {
        now = roce_ask_due(&one.ask);
        CHECK(now);
        roce_ask_timer(&one.ask, now);
        CHECK_EQ(request_of(&one.ask).packet.psn, 100);
    }
}

static void timeouts_end(void)
{
    for (longer = 1; longer <= 4; longer += 3) {
        quiet_pair(1024);
        post(IBV_WR_SEND, 4, 0, 0);
        request_of(&one.ask);
        say_again((int)longer * 3 - 1);
        now = roce_ask_due(&one.ask);
        roce_ask_timer(&one.ask, now);
        CHECK_EQ(one.ask.status, IBV_WC_RETRY_EXC_ERR);
        CHECK_EQ(roce_ask_due(&one.ask), 0);
        nothing_more();
    }
    longer = 1;
}

/* A process that stands still for an hour has waited for one timeout, not for thousands. */
static void standing_still_is_not_waiting(void)
{
    quiet_pair(1024);
    post(IBV_WR_SEND, 4, 0, 0);
    request_of(&one.ask);
    say_again(1);
    now += UINT64_C(3600000000000);
    roce_ask_timer(&one.ask, now);
    CHECK_EQ(request_of(&one.ask).packet.psn, 100);
    roce_ask_timer(&one.ask, now);
    CHECK_EQ(one.ask.status, IBV_WC_SUCCESS);
    CHECK(roce_ask_due(&one.ask) > now);
}

/* Packets get lost while the peer has no receive for a long time: each of its RNR NAKs shows that it
 * lives. */
static void refusals_are_signs_of_life(void)
{
    static uint8_t data[8];

    quiet_pair(1024);
    one.ask.rnr_retry = one.ask.rnr_retries = 7;
    post(IBV_WR_SEND, 4, 0, 0);
    request_of(&one.ask);
    for (int i = 0; i < 10; i++) {
        say_again(1);
        now = roce_ask_due(&one.ask);
        roce_ask_timer(&one.ask, now);
        struct roce_request r = request_of(&one.ask);
        r.packet.payload = data;
        roce_answer_take(&two.answer, &r.packet);
        struct roce_packet p = answer_of(&two.answer);
        CHECK_EQ(p.syndrome, ROCE_AETH_RNR | 1);
        roce_ask_take(&one.ask, &p, now);
        now = roce_ask_due(&one.ask);
        roce_ask_timer(&one.ask, now);
        CHECK_EQ(request_of(&one.ask).packet.psn, 100);
    }
    CHECK_EQ(one.ask.status, IBV_WC_SUCCESS);
}

static void receiver_not_ready(void)
{
    static uint8_t data[8];

    quiet_pair(1024);
    post(IBV_WR_SEND, 4, 0, 0);
    for (int i = 0; i < 3; i++) {
        struct roce_request r = request_of(&one.ask);
        r.packet.payload = data;
        roce_answer_take(&two.answer, &r.packet);
        struct roce_packet p = answer_of(&two.answer);
        CHECK_EQ(p.syndrome, ROCE_AETH_RNR | 1);
        CHECK_EQ(p.psn, 100);
        roce_ask_take(&one.ask, &p, now);
        if (i < 2) {
            nothing_more();
            CHECK_EQ(roce_ask_due(&one.ask), now + 10000);
            now += 10000;
            roce_ask_timer(&one.ask, now);
        }
    }
    CHECK_EQ(one.ask.status, IBV_WC_RNR_RETRY_EXC_ERR);
}

static void refused(uint8_t opcode, uint32_t rkey, enum ibv_wc_status status)
{
    static uint8_t data[1024];

    quiet_pair(1024);
    post(opcode, 8, 64, rkey);
    struct roce_request r = request_of(&one.ask);
    r.packet.payload = data;
    roce_answer_take(&two.answer, &r.packet);
    struct roce_packet p = answer_of(&two.answer);
    CHECK_EQ(p.syndrome & ROCE_AETH_KIND, ROCE_AETH_NAK);
    roce_ask_take(&one.ask, &p, now);
    CHECK_EQ(one.ask.status, status);
    CHECK(two.answer.stopped);
}

static void bad_keys(void)
{
    refused(IBV_WR_RDMA_WRITE, RKEY + 1, IBV_WC_REM_ACCESS_ERR);
    refused(IBV_WR_RDMA_READ, RKEY + 1, IBV_WC_REM_ACCESS_ERR);
    refused(IBV_WR_ATOMIC_FETCH_AND_ADD, RKEY + 1, IBV_WC_REM_ACCESS_ERR);
}

/* One NAK for a gap, however many packets follow; the requester goes back in the middle of a message. */
static void gap_in_the_middle(void)
{
    static uint8_t data[1024];
    struct roce_request r;

    quiet_pair(1024);
    two.receives = 1;
    post(IBV_WR_SEND, 5000, 0, 0);
    for (int i = 0; i < 5; i++) {
        r = request_of(&one.ask);
        r.packet.payload = data;
        if (i != 1)
            roce_answer_take(&two.answer, &r.packet);
    }
    struct roce_packet p = answer_of(&two.answer);
    CHECK_EQ(p.syndrome, ROCE_AETH_NAK | ROCE_NAK_SEQUENCE);
    CHECK_EQ(p.psn, 101);
    nothing_more();
    roce_ask_take(&one.ask, &p, now);
    for (int i = 1; i < 5; i++) {
        r = request_of(&one.ask);
        CHECK_EQ(r.packet.psn, 100 + i);
        CHECK_EQ(r.packet.opcode, i < 4 ? ROCE_SEND_MIDDLE : ROCE_SEND_LAST);
        CHECK_EQ(r.offset, i * 1024);
    }
    nothing_more();
}

/* A WRITE goes as WRITEs of one packet each; but one that consumes a receive stays whole, because its
 * completion reports the length. */
static void writes_of_one_packet(void)
{
    static uint8_t whole[3000];
    struct roce_request r;

    quiet_pair(1024);
    one.ask.singly = true;
    post(IBV_WR_RDMA_WRITE, sizeof whole, 64, RKEY);
    post(IBV_WR_RDMA_WRITE_WITH_IMM, sizeof whole, 64, RKEY);
    fill(whole, sizeof whole, 5);
    for (int i = 0; i < 3; i++) {
        r = request_of(&one.ask);
        CHECK_EQ(r.packet.opcode, ROCE_WRITE_ONLY);
        CHECK_EQ(r.packet.addr, 64 + i * 1024);
        CHECK_EQ(r.packet.length, i < 2 ? 1024 : 952);
        CHECK_EQ(r.packet.length, r.packet.payload_length);
        r.packet.payload = whole + r.offset;
        roce_answer_take(&two.answer, &r.packet);
    }
    CHECK(holds(two.memory + 64, sizeof whole, 5));
    r = request_of(&one.ask);
    CHECK_EQ(r.packet.opcode, ROCE_WRITE_FIRST);
    CHECK_EQ(r.packet.length, sizeof whole);
    const struct roce_packet ack = {.opcode = ROCE_ACK, .psn = 102};
    roce_ask_take(&one.ask, &ack, now);
    CHECK_EQ(one.ask.head, 1);
}

/* The peer shows that it is a softdev device while a WRITE is under way: that one is repeated as it was. */
static void writes_under_way_stay_whole(void)
{
    quiet_pair(1024);
    post(IBV_WR_RDMA_WRITE, 3000, 64, RKEY);
    request_of(&one.ask);
    one.ask.singly = true;
    post(IBV_WR_RDMA_WRITE, 2000, 64, RKEY);
    CHECK_EQ(request_of(&one.ask).packet.opcode, ROCE_WRITE_MIDDLE);
    CHECK_EQ(request_of(&one.ask).packet.opcode, ROCE_WRITE_LAST);
    CHECK_EQ(request_of(&one.ask).packet.opcode, ROCE_WRITE_ONLY);
    const struct roce_packet again = {
        .opcode = ROCE_ACK, .psn = 101, .syndrome = ROCE_AETH_NAK | ROCE_NAK_SEQUENCE};
    roce_ask_take(&one.ask, &again, now);
    CHECK_EQ(request_of(&one.ask).packet.opcode, ROCE_WRITE_MIDDLE);
}

/* How many of that many packets of one WRITE ask for an acknowledgement. */
static int asked(uint32_t window, int packets)
{
    int found = 0;

    quiet_pair(1024);
    one.ask.window = window;
    post(IBV_WR_RDMA_WRITE, (uint32_t)packets * 1024, 0, RKEY);
    for (int i = 0; i < packets; i++)
        found += request_of(&one.ask).packet.ack_request;
    return found;
}

/* An acknowledgement costs both ends a system call: two in a window, and one at the end. */
static void acknowledgements_for_half_a_window(void)
{
    CHECK_EQ(asked(ROCE_WINDOW_FIRST, 63), 1);
    CHECK_EQ(asked(ROCE_WINDOW_FIRST, 100), 2);
    CHECK_EQ(asked(1024, 400), 4); /* but the program learns before that what has arrived */
    CHECK_EQ(asked(48, 40), 2);    /* a short window is no reason for more */
}

/* After losing the middle of a READ response, the requester asks for the rest, and only that. */
static void rest_of_a_read(void)
{
    struct roce_packet p;

    quiet_pair(256);
    post(IBV_WR_RDMA_READ, 1000, READ_ONLY, RKEY);
    post(IBV_WR_SEND, 0, 0, 0);
    two.receives = 1;
    struct roce_request r = request_of(&one.ask);
    CHECK_EQ(r.packet.length, 1000);
    roce_answer_take(&two.answer, &r.packet);
    r = request_of(&one.ask);
    CHECK_EQ(r.packet.psn, 104);
    roce_answer_take(&two.answer, &r.packet);
    for (int i = 0; i < 4; i++) {
        p = answer_of(&two.answer);
        CHECK_EQ(p.psn, 100 + i);
        if (i != 1)
            roce_ask_take(&one.ask, &p, now);
    }
    r = request_of(&one.ask);
    CHECK_EQ(r.packet.opcode, ROCE_READ_REQUEST);
    CHECK_EQ(r.packet.psn, 101);
    CHECK_EQ(r.packet.addr, READ_ONLY + 256);
    CHECK_EQ(r.packet.length, 744);
    p = answer_of(&two.answer); /* of the SEND: beyond the READ, so it only shows that the READ is missing */
    CHECK_EQ(p.opcode, ROCE_ACK);
    roce_ask_take(&one.ask, &p, now);
    CHECK_EQ(one.ask.head, 0);
    roce_answer_take(&two.answer, &r.packet);
    for (int i = 1; i < 4; i++) {
        p = answer_of(&two.answer);
        CHECK_EQ(p.psn, 100 + i);
        CHECK_EQ(p.opcode, i == 1 ? ROCE_READ_FIRST : i == 2 ? ROCE_READ_MIDDLE : ROCE_READ_LAST);
        roce_ask_take(&one.ask, &p, now);
    }
    CHECK_EQ(one.ask.head, 1);
    CHECK(holds(one.buffer[0], 1000, 9));
}

/* The memory of the second message goes away while it is being sent. The first completes, by whatever acknowledgement. */
static void cut_off(void)
{
    enum { LENGTH = 2500, SENT = 5 };
    static const uint8_t data[1024];

    for (uint32_t acknowledged = 2; acknowledged < SENT; acknowledged++) {
        struct roce_request r;

        quiet_pair(1024);
        for (int i = 0; i < 3; i++)
            post(IBV_WR_RDMA_WRITE, LENGTH, 0, RKEY);
        for (uint32_t i = 0; i < SENT; i++)
            CHECK_EQ(request_of(&one.ask).packet.psn, 100 + i);
        r = request_of(&one.ask);
        CHECK_EQ(r.index, 1);
        roce_ask_cut(&one.ask, &r);
        CHECK_EQ(one.ask.tail, 1);
        /* Nothing has asked for an acknowledgement yet: the last packet before does. */
        r = request_of(&one.ask);
        CHECK_EQ(r.packet.psn, 102);
        CHECK(r.packet.ack_request);
        CHECK(!roce_ask_next(&one.ask, now, &r));
        /* Where the packets are lost, only they are repeated. */
        say_again(1);
        CHECK_EQ(request_of(&one.ask).packet.psn, 101);
        CHECK_EQ(request_of(&one.ask).packet.psn, 102);
        CHECK(!roce_ask_next(&one.ask, now, &r));
        for (uint32_t i = 0; i <= acknowledged; i++) {
            static const uint8_t opcodes[] = {ROCE_WRITE_FIRST, ROCE_WRITE_MIDDLE, ROCE_WRITE_LAST};
            const struct roce_packet p = {.opcode = opcodes[i % 3],
                                          .psn = 100 + i,
                                          .rkey = RKEY,
                                          .length = LENGTH,
                                          .ack_request = i == acknowledged,
                                          .payload = data,
                                          .payload_length = i % 3 == 2 ? LENGTH % 1024 : 1024};
            roce_answer_take(&two.answer, &p);
        }
        const struct roce_packet p = answer_of(&two.answer);
        CHECK_EQ(p.psn, 100 + acknowledged);
        roce_ask_take(&one.ask, &p, now);
        CHECK_EQ(one.ask.head, 1);
        CHECK(!roce_ask_waits(&one.ask));
        CHECK_EQ(roce_ask_due(&one.ask), 0);
        nothing_more();
    }
}

static void cut_off_without_acknowledgements(void)
{
    struct roce_request sent, r;

    quiet_pair_of_unreliable();
    for (int i = 0; i < 3; i++)
        post(IBV_WR_RDMA_WRITE, 2500, 0, RKEY);
    for (uint32_t i = 0; i < 4; i++)
        sent = request_of(&one.ask);
    r = request_of(&one.ask);
    roce_ask_cut(&one.ask, &r);
    CHECK_EQ(one.ask.head, 1);
    CHECK(!roce_ask_waits(&one.ask));
    roce_ask_unsent(&one.ask, &sent); /* the socket was full */
    CHECK(!roce_ask_waits(&one.ask));
    roce_ask_flush(&one.ask);
    one.ask.status = 0;
    post(IBV_WR_RDMA_WRITE, 8, 0, RKEY);
    CHECK_EQ(request_of(&one.ask).packet.psn, sent.packet.psn);
}

static void atomic_is_replayed(void)
{
    quiet_pair(1024);
    post(IBV_WR_ATOMIC_FETCH_AND_ADD, 8, 0, RKEY);
    one.ring[0].compare_add = 5;
    struct roce_request r = request_of(&one.ask);
    for (int i = 0; i < 3; i++) {
        roce_answer_take(&two.answer, &r.packet);
        CHECK_EQ(answer_of(&two.answer).original, 0);
    }
    CHECK_EQ(two.memory[0], 5);
    r.packet.compare = 1; /* the same PSN, another request: not ours */
    r.packet.addr += 8;
    roce_answer_take(&two.answer, &r.packet);
    nothing_more();
}

/* PSNs come again. What is repeated is the newest that has had it. */
static void atomic_is_replayed_after_all_numbers(void)
{
    quiet_pair(1024);
    post(IBV_WR_ATOMIC_FETCH_AND_ADD, 8, 0, RKEY);
    one.ring[0].compare_add = 5;
    struct roce_request r = request_of(&one.ask);
    for (uint64_t before = 0; before < 15; before += 5) {
        two.answer.psn = 100; /* there were 2^24 packets */
        roce_answer_take(&two.answer, &r.packet);
        CHECK_EQ(answer_of(&two.answer).original, before);
        roce_answer_take(&two.answer, &r.packet);
        CHECK_EQ(answer_of(&two.answer).original, before);
    }
    CHECK_EQ(two.memory[0], 15);
}

/* A SEND is repeated after the responder has carried out an atomic behind it, whose response may be lost:
 * the acknowledgement covers only the SEND. */
static void atomics_are_not_acknowledged(void)
{
    static uint8_t data[8];

    quiet_pair(1024);
    two.receives = 1;
    post(IBV_WR_SEND, 4, 0, 0);
    post(IBV_WR_ATOMIC_FETCH_AND_ADD, 8, 0, RKEY);
    struct roce_request send = request_of(&one.ask), add = request_of(&one.ask);
    fill(data, 4, 0);
    send.packet.payload = data;
    for (int i = 0; i < 2; i++) {
        roce_answer_take(&two.answer, &send.packet);
        if (!i)
            roce_answer_take(&two.answer, &add.packet);
        struct roce_packet p = answer_of(&two.answer);
        if (!i) {
            CHECK_EQ(p.opcode, ROCE_ATOMIC_ACKNOWLEDGE);
            nothing_more(); /* it covers the SEND, too */
            continue;
        }
        CHECK_EQ(p.opcode, ROCE_ACK);
        CHECK_EQ(p.psn, 100);
        CHECK_EQ(p.msn, 1);
        roce_ask_take(&one.ask, &p, now);
    }
    CHECK_EQ(one.ask.head, 1);
}

static void too_many_fetches(void)
{
    quiet_pair(1024);
    one.ask.max_fetches = FETCHES + 1;
    for (int i = 0; i <= FETCHES; i++)
        post(IBV_WR_RDMA_READ, 8, READ_ONLY, RKEY);
    for (int i = 0; i <= FETCHES; i++) {
        struct roce_request r = request_of(&one.ask);
        roce_answer_take(&two.answer, &r.packet);
    }
    CHECK(two.answer.stopped);
}

/* Their number is raised while the ring does not begin at its oldest, and some wait for their answers. */
static void more_fetches_at_a_time(void)
{
    enum { FEWER = 2, FIRST = 3, ALL = 6 };

    quiet_pair(1024);
    one.ask.max_fetches = QUEUE;
    two.answer.max_fetches = FEWER;
    for (int i = 0; i < ALL; i++)
        post(IBV_WR_RDMA_READ, 8, READ_ONLY, RKEY);
    for (uint32_t i = 0; i < ALL; i++) {
        struct roce_request r = request_of(&one.ask);
        if (i == FIRST)
            roce_answer_allow(&two.answer, FETCHES);
        roce_answer_take(&two.answer, &r.packet);
        CHECK(two.answer.stopped == (i == ALL - 1));
        if (!i)
            CHECK_EQ(answer_of(&two.answer).psn, 100);
    }
    for (uint32_t i = 1; i < ALL - 1; i++)
        CHECK_EQ(answer_of(&two.answer).psn, 100 + i);
    CHECK_EQ(answer_of(&two.answer).opcode, ROCE_ACK);
}

/* ---- without acknowledgements -------------------------------------------------------------------------- */

/* However many packets were lost, the next message arrives; only what is a little late is dropped. */
static void long_losses(void)
{
    static const int32_t lost[] = {
        0, 1, 1 << 16, (1 << 23) - 1, 1 << 23, (1 << 23) + 1, (1 << 24) - (1 << 17)};
    const struct roce_packet write = {.opcode = ROCE_UC | ROCE_WRITE_ONLY,
                                      .rkey = RKEY,
                                      .payload = one.buffer[0],
                                      .length = 4,
                                      .payload_length = 4};

    for (size_t i = 0; i < sizeof lost / sizeof *lost; i++) {
        quiet_pair_of_unreliable();
        struct roce_packet p = write;
        p.psn = (100 + (uint32_t)lost[i]) & ROCE_24;
        roce_answer_take(&two.answer, &p);
        CHECK_EQ(two.answer.msn, 1);
        CHECK_EQ(two.answer.psn, (p.psn + 1) & ROCE_24);
        p.psn = (p.psn - 1000) & ROCE_24;
        roce_answer_take(&two.answer, &p);
        CHECK_EQ(two.answer.msn, 1);
        CHECK_EQ(two.answer.dropped, 1);
    }
}

/* What was never sent takes no numbers: the peer does not look for it. */
static void numbers_after_a_flush(void)
{
    quiet_pair_of_unreliable();
    post(IBV_WR_RDMA_WRITE, 5000, 0, RKEY);
    post(IBV_WR_RDMA_WRITE, 5000, 0, RKEY);
    CHECK_EQ(request_of(&one.ask).packet.psn, 100);
    roce_ask_flush(&one.ask);
    one.ask.status = 0;
    post(IBV_WR_RDMA_WRITE, 8, 0, RKEY);
    const struct roce_request r = request_of(&one.ask);
    CHECK_EQ(r.packet.psn, 101);
    CHECK_EQ(r.offset, 0);
    CHECK_EQ(one.ask.head, one.ask.tail);
}

/* For any input, from any sender that guesses the numbers: no access beyond what was registered, no
 * endless loop. */
static void nonsense(void)
{
    static uint8_t bytes[ROCE_MAX_PACKET];
    uint32_t state = 11;

    for (int round = 0; round < 300; round++) {
        quiet_pair(256);
        for (int i = 0; i < 8; i++)
            post(i % 2 ? IBV_WR_RDMA_READ : IBV_WR_SEND, 700, READ_ONLY, RKEY);
        for (int i = 0; i < 300; i++) {
            struct roce_packet p;
            struct roce_request r;
            const size_t size = 4 * (test_random(&state) % 80);

            two.receives = 2;
            for (size_t k = 0; k < size; k++)
                bytes[k] = (uint8_t)test_random(&state);
            bytes[0] &= 0x1f;
            bytes[1] &= 0xf0;
            bytes[2] = bytes[3] = 0xff;
            bytes[8] = bytes[9] = bytes[10] = 0;
            bytes[11] = (uint8_t)(100 + test_random(&state) % 24);
            if (size > 28 && test_random(&state) % 2)
                memcpy(bytes + 12, "\0\0\0\0\0\0\x40\0\0\0\0\x4d\0\0\0\x20", 16);
            roce_ask_next(&one.ask, now, &r);
            if (roce_parse(bytes, size, &p) != ROCE_OK)
                continue;
            if (roce_traits(p.opcode) & ROCE_IS_RESPONSE)
                roce_ask_take(&one.ask, &p, now);
            else if (!(roce_traits(p.opcode) & ROCE_IS_LAST) ||
                     (roce_traits(p.opcode) & (ROCE_HAS_RETH | ROCE_HAS_ATOMIC)))
                roce_answer_take(&two.answer, &p);
            for (int k = 0; k < 50 && roce_answer_next(&two.answer, &p); k++)
                CHECK(!p.payload_length || ((uint8_t *)p.payload >= two.memory &&
                                            p.payload + p.payload_length <= two.memory + MEMORY));
        }
    }
}

TEST_MAIN(TEST(timeouts_end), TEST(standing_still_is_not_waiting), TEST(refusals_are_signs_of_life),
          TEST(receiver_not_ready), TEST(bad_keys), TEST(gap_in_the_middle), TEST(writes_of_one_packet),
          TEST(writes_under_way_stay_whole), TEST(acknowledgements_for_half_a_window), TEST(rest_of_a_read),
          TEST(cut_off), TEST(cut_off_without_acknowledgements), TEST(atomic_is_replayed),
          TEST(atomic_is_replayed_after_all_numbers), TEST(long_losses), TEST(numbers_after_a_flush),
          TEST(atomics_are_not_acknowledged), TEST(too_many_fetches), TEST(more_fetches_at_a_time),
          TEST(nonsense))
