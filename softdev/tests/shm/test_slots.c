/* One process takes many slots, to be connected to at each of them: the device connects to so many of a process. */
#include "tests/harness.h"
#include "tests/shm/raw_peer.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

/* Whether the device connects to the peer's slot, too, and stays. */
static bool met(struct raw_peer *peer, uint32_t slot)
{
    struct pollfd ready[2] = {{.fd = peer->listen_fd, .events = POLLIN}, {.events = POLLIN}};
    struct soft_message msg;
    int fds[SOFT_PACKET_FDS], got = 0;

    raw_dial(peer, slot);
    ready[1].fd = peer->ask_fd;
    while (got >= 0 && !ready[0].revents) {
        CHECK(poll(ready, 2, -1) > 0);
        got = raw_receive(peer->ask_fd, &msg, fds);
        raw_close_all(fds);
    }
    if (!ready[0].revents)
        return false;
    peer->answer_fd = accept4(peer->listen_fd, NULL, NULL, SOCK_CLOEXEC);
    CHECK(peer->answer_fd >= 0);
    const bool stays = raw_wait(peer->answer_fd, &msg, fds);
    raw_close_all(fds);
    return stays;
}

static void many_slots(void)
{
    enum { SLOTS = 64, MOST = 8 };
    static struct raw_peer peers[SLOTS];
    struct end victim;
    unsigned int n = 0;

    end_open(&victim, &(struct end_options){.type = IBV_QPT_UD});
    const struct address self = end_address(&victim);
    for (unsigned int i = 0; i < SLOTS; i++) {
        raw_open(&peers[i]);
        n += met(&peers[i], self.qpn >> SOFT_QPN_INDEX_BITS);
        close(peers[i].ask_fd);
        peers[i].ask_fd = -1;
    }
    CHECK(n && n <= MOST);
    for (unsigned int i = 0; i < SLOTS; i++)
        raw_close(&peers[i]);
    end_close(&victim);
}

TEST_MAIN(TEST(many_slots))
