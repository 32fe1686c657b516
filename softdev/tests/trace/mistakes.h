/* Programs with one planted mistake each, and what the recorder's explanation must call it. */
#ifndef SOFTDEV_TESTS_MISTAKES_H
#define SOFTDEV_TESTS_MISTAKES_H

#include "tests/harness.h"

struct mistake {
    const char *name;
    const char *finding; /* the first that is explained, or either of two; NULL: nothing is wrong */
    void (*run)(void);
    bool hangs; /* it ends in a call that never returns, and is killed there */
};

extern const struct mistake mistakes_states[], mistakes_queues[], mistakes_memory[], mistakes_pairs[],
    mistakes_events[], mistakes_vain[];
/* Each list ends with a name that is NULL. */
#define MISTAKES_END                                                                                         \
    {                                                                                                        \
        0                                                                                                    \
    }

/* Retries soon over, so that what is never acknowledged fails in a moment. */
#define IMPATIENT                                                                                            \
    {                                                                                                        \
        .timeout = 10, .retry_cnt = 1, .rnr_retry = 1, .min_rnr_timer = 1, .max_rd_atomic = 16               \
    }

/* And words that the explanation must have. */
struct wording {
    struct mistake one;
    const char *says;
};
extern const struct wording mistakes_words[];

/* That of mistakes_pairs: nothing is ever acknowledged. */
void wrong_packet_number(void);

/* Before the call in which it hangs. */
void last_call(void);
/* The next completion of either queue, whatever it is. */
struct ibv_wc any_wc(struct ibv_cq *cq);

#endif
