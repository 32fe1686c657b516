/* `softdev trace --serve`: what Prometheus reads of a program while it runs, and clients that are no Prometheus.
 *
 * test_serve TOOL runs itself, as "program", under the tool, and says by lines on standard input how far it goes. */
#include "tests/harness.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

/* MEMORY: pages that a client of 64 MiB may cost. Sanitizers keep what is freed for a while, and give it back when they
 * like: their builds use a thousand pages more or fewer from one moment to the next. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { MEMORY = 8192 };
#else
enum { MEMORY = 256 };
#endif
enum { FIRST = 40, LIST = 4, ROUND = 1000, ROUNDS = 10, BYTES = 64, SILENT = 20 };

/* ---- the program -------------------------------------------------------------------------------------- */

static void next_line(const char *done)
{
    char line[16];

    puts(done);
    fflush(stdout);
    CHECK(fgets(line, sizeof line, stdin) != NULL);
}

static void messages(struct end *a, struct end *b, unsigned count)
{
    for (unsigned n = 0; n < count; n++) {
        post_recv(b, n, 0, BYTES);
        do_send(a, 0, BYTES);
        expect_wc(b->recv_cq, n, IBV_WC_SUCCESS);
    }
}

static void list(struct end *a, struct end *b)
{
    struct ibv_sge sge = {(uintptr_t)a->buf, BYTES, a->mr->lkey};
    struct ibv_send_wr wr[LIST], *bad;

    for (unsigned n = 0; n < LIST; n++) {
        post_recv(b, n, 0, BYTES);
        wr[n] = (struct ibv_send_wr){.wr_id = 900 + n,
                                     .next = n + 1 < LIST ? &wr[n + 1] : NULL,
                                     .sg_list = &sge,
                                     .num_sge = 1,
                                     .opcode = IBV_WR_SEND,
                                     .send_flags = n + 1 < LIST ? 0 : IBV_SEND_SIGNALED};
    }
    OK(ibv_post_send(a->qp, wr, &bad));
    for (unsigned n = 0; n < LIST; n++)
        expect_wc(b->recv_cq, n, IBV_WC_SUCCESS);
    expect_wc(a->send_cq, 900 + LIST - 1, IBV_WC_SUCCESS);
}

static int program(void)
{
    struct end a, b;

    pair_open(&a, &b, NULL);
    pair_connect(&a, &b, NULL);
    messages(&a, &b, FIRST);
    list(&a, &b);
    for (unsigned n = 0; n < ROUNDS; n++) {
        next_line("more");
        messages(&a, &b, ROUND);
    }
    next_line("fail");
    post_recv(&b, 71, 0, 99);
    post_send(&a, 72, 0, 100, 0);
    expect_wc(b.recv_cq, 71, IBV_WC_LOC_LEN_ERR);
    expect_wc(a.send_cq, 72, IBV_WC_REM_INV_REQ_ERR);
    next_line("end");
    pair_close(&a, &b);
    return 7;
}

/* ---- the tool that it runs under ---------------------------------------------------------------------- */

static FILE *to_program, *from_program;
static pid_t tool;
static struct sockaddr_in where = {.sin_family = AF_INET};

/* What it says after that goes on to standard error, also when this program has ended: a sanitizer's report, too. */
static void pass_on(int from, int in, int out)
{
    char some[4096];
    ssize_t got;

    if (fork())
        return;
    close(in); /* the program is to see that this one has ended */
    close(out);
    while ((got = read(from, some, sizeof some)) > 0 && write(2, some, (size_t)got) == got) {
    }
    _exit(0);
}

static void read_line(int from, char *line, size_t size)
{
    size_t n = 0;

    while (n < size - 1 && read(from, line + n, 1) == 1 && line[n++] != '\n') {
    }
    line[n] = '\0';
}

static void start(const char *path)
{
    int in[2], out[2], err[2];
    char line[200], self[200];
    unsigned port = 0;

    const ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    CHECK(length > 0);
    self[length] = '\0';
    CHECK(!pipe(in) && !pipe(out) && !pipe(err));
    tool = fork();
    CHECK(tool >= 0);
    if (!tool) {
        dup2(in[0], 0);
        dup2(out[1], 1);
        dup2(err[1], 2);
        close(in[1]);
        execl(path, path, "--serve", "0", self, "program", (char *)NULL);
        _exit(126);
    }
    close(in[0]);
    close(out[1]);
    close(err[1]);
    read_line(err[0], line, sizeof line);
    pass_on(err[0], in[1], out[0]);
    close(err[0]);
    if (sscanf(line, "softdev: metrics are at http://127.0.0.1:%u/metrics", &port) != 1)
        FAIL("the tool says %s", line);
    to_program = fdopen(in[1], "w");
    from_program = fdopen(out[0], "r");
    where.sin_port = htons((uint16_t)port);
    inet_pton(AF_INET, "127.0.0.1", &where.sin_addr);
}

static void wait_for(const char *word)
{
    char line[200];

    CHECK(fgets(line, sizeof line, from_program) != NULL);
    if (strncmp(line, word, strlen(word)) != 0)
        FAIL("the program says %s", line);
}

static void go(void)
{
    fputs("go\n", to_program);
    fflush(to_program);
}

static int dial(void)
{
    const int fd = socket(AF_INET, SOCK_STREAM, 0);

    CHECK(fd >= 0 && !connect(fd, (struct sockaddr *)&where, sizeof where));
    return fd;
}

/* The answer until the end of the connection. */
static char *ask(const char *request)
{
    const size_t length = strlen(request), room = 1 << 20;
    const int fd = dial();
    char *text = malloc(room);
    size_t got = 0;
    ssize_t n = 1;

    CHECK(send(fd, request, length, MSG_NOSIGNAL) == (ssize_t)length);
    while (n > 0 && got < room - 1) {
        n = recv(fd, text + got, room - 1 - got, 0);
        got += n > 0 ? (size_t)n : 0;
    }
    text[got] = '\0';
    close(fd);
    return text;
}

/* The sum of the series of a family that have all of these labels; -1: there is none. */
static double sum(const char *page, const char *family, const char *with, const char *and)
{
    double total = -1;

    for (const char *line = page; line && *line; line = strchr(line, '\n'), line += line != NULL) {
        const size_t length = strcspn(line, "\n"), name = strlen(family);
        char copy[1000];
        if (length >= sizeof copy || strncmp(line, family, name) != 0 || line[name] != '{')
            continue;
        memcpy(copy, line, length);
        copy[length] = '\0';
        if (strstr(copy, with) && strstr(copy, and))
            total = (total < 0 ? 0 : total) + strtod(strrchr(copy, '}') + 1, NULL);
    }
    return total;
}

#define METRICS "GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n"

/* The page, as soon as it has that number there. It shows what had happened at one moment, so a test waits for what
 * happens last. */
static char *when(const char *family, const char *with, const char *and, double value)
{
    for (;;) {
        char *page = ask(METRICS);
        if (sum(page, family, with, and) == value)
            return page;
        if (sum(page, family, with, and) > value)
            FAIL("%s is %f, more than %f", family, sum(page, family, with, and), value);
        free(page);
        usleep(10000);
    }
}

#define SEES(page, family, with, and, value)                                                                 \
    do {                                                                                                     \
        const double got_ = sum(page, family, with, and);                                                    \
        if (got_ != (double)(value))                                                                         \
            FAIL("%s{%s %s} is %f, not %f", family, with, and, got_, (double)(value));                       \
    } while (0)

/* As Prometheus wants it: known types, one series of a name and labels, buckets that only grow. */
static void check_format(const char *page)
{
    const char *body = strstr(page, "\r\n\r\n");
    char before[1000] = "", copy[1000];
    double bucket = 0;

    CHECK(!strncmp(page, "HTTP/1.1 200 OK\r\n", 17) && body);
    CHECK(strstr(page, "Content-Type: text/plain; version=0.0.4"));
    CHECK_EQ(strtoul(strstr(page, "Content-Length: ") + 16, NULL, 10), strlen(body + 4));
    for (const char *line = body + 4; *line; line += strcspn(line, "\n") + 1) {
        const size_t length = strcspn(line, "\n");
        CHECK(length < sizeof copy && line[length] == '\n');
        memcpy(copy, line, length);
        copy[length] = '\0';
        if (*line == '#') {
            CHECK(!strncmp(copy, "# HELP softdev_", 15) || !strncmp(copy, "# TYPE softdev_", 15));
            continue;
        }
        char *end = strrchr(copy, '}'), *rest;
        CHECK(!strncmp(copy, "softdev_", 8) && strchr(copy, '{') && end && end[1] == ' ');
        const double value = strtod(end + 2, &rest);
        CHECK(!*rest);
        end[1] = '\0';
        const char *again = strstr(body, copy);
        CHECK(again == line); /* not before */
        char *le = strstr(copy, "le=\"");
        if (le) {
            *le = '\0';
            if (!strcmp(copy, before) && value < bucket)
                FAIL("a bucket of %s has less than a smaller one", copy);
            bucket = value;
            strcpy(before, copy);
        }
    }
}

/* ---- tests -------------------------------------------------------------------------------------------- */

static void counts(void)
{
    unsigned total = FIRST + LIST;

    wait_for("more");
    /* The last of each message, and of the list, is a completion. */
    char *page = when("softdev_cq_completions_total", "", "", total + FIRST + 1);
    check_format(page);
    SEES(page, "softdev_sends_total", "", "", total);
    SEES(page, "softdev_send_bytes_total", "device=\"soft0\"", "peer=\"", total * BYTES);
    SEES(page, "softdev_doorbells_total", "", "", FIRST + 1);
    SEES(page, "softdev_receives_total", "", "", total);
    SEES(page, "softdev_receive_bytes_total", "", "", total * BYTES);
    SEES(page, "softdev_post_batch_requests_bucket", "le=\"1\"", "", FIRST);
    SEES(page, "softdev_post_batch_requests_bucket", "le=\"4\"", "", FIRST + 1);
    SEES(page, "softdev_post_batch_requests_sum", "", "", total);
    SEES(page, "softdev_latency_seconds_count", "", "", FIRST + 1);
    SEES(page, "softdev_latency_seconds_bucket", "le=\"+Inf\"", "", FIRST + 1);
    CHECK(sum(page, "softdev_latency_seconds_sum", "", "") > 0);
    SEES(page, "softdev_peer_sends_total", "", "", total);
    SEES(page, "softdev_peer_latency_seconds_count", "", "", FIRST + 1);
    SEES(page, "softdev_outstanding_sends", "", "", 0);
    SEES(page, "softdev_qps_created_total", "", "", 2);
    SEES(page, "softdev_mrs_registered_total", "", "", 2);
    SEES(page, "softdev_process_info", "program=\"", "program\"", 1);
    SEES(page, "softdev_completion_errors_total", "", "", -1);
    free(page);
    /* More than the ring keeps: what was counted stays. */
    for (unsigned n = 0; n < ROUNDS; n++) {
        total += ROUND;
        go();
        wait_for(n + 1 < ROUNDS ? "more" : "fail");
        free(when("softdev_cq_completions_total", "", "", total + total - LIST + 1));
    }
    page = ask(METRICS);
    SEES(page, "softdev_sends_total", "", "", total);
    SEES(page, "softdev_records_missed_total", "", "", 0);
    CHECK(sum(page, "softdev_records_total", "", "") > 1 << 14);
    SEES(page, "softdev_latency_seconds_count", "", "", total - LIST + 1);
    free(page);
}

static void fails(void)
{
    go();
    wait_for("end");
    char *page = when("softdev_completion_errors_total", "status=\"REM_INV_REQ_ERR\"", "", 1);
    SEES(page, "softdev_completion_errors_total", "status=\"LOC_LEN_ERR\"", "", 1);
    SEES(page, "softdev_peer_completion_errors_total", "", "", 2);
    free(page);
    page = when("softdev_findings", "name=\"receive-too-small\"", "severity=\"failed\"", 2);
    check_format(page);
    free(page);
}

static unsigned long pages_of(pid_t pid)
{
    unsigned long whole, resident = 0;
    char path[64];

    snprintf(path, sizeof path, "/proc/%d/statm", (int)pid);
    FILE *from = fopen(path, "r");
    CHECK(from && fscanf(from, "%lu %lu", &whole, &resident) == 2);
    fclose(from);
    return resident;
}

static void strangers(void)
{
    static char much[1 << 20];
    int silent[SILENT];
    char byte, *page;

    /* More than there are places, and they ask nothing: others are answered all the same. */
    for (unsigned n = 0; n < SILENT; n++)
        silent[n] = dial();
    page = ask(METRICS);
    check_format(page);
    free(page);
    /* The one that came first has had to go. */
    CHECK(recv(silent[0], &byte, 1, 0) <= 0);
    for (unsigned n = 0; n < SILENT; n++)
        close(silent[n]);

    const unsigned long before = pages_of(tool);
    const int fd = dial();
    ssize_t sent = 1;
    memset(much, 'x', sizeof much);
    for (unsigned n = 0; n < 64 && sent > 0; n++)
        sent = send(fd, much, sizeof much, MSG_NOSIGNAL);
    CHECK(sent < 0 && (errno == EPIPE || errno == ECONNRESET));
    close(fd);
    CHECK(pages_of(tool) < before + MEMORY);

    page = ask("GET / HTTP/1.0\r\n\r\n");
    CHECK(!strncmp(page, "HTTP/1.1 404 ", 13));
    free(page);
    page = ask("POST /metrics HTTP/1.1\r\n\r\n");
    CHECK(!strncmp(page, "HTTP/1.1 405 ", 13));
    free(page);
    page = ask("HEAD /metrics HTTP/1.1\r\n\r\n");
    CHECK(!strncmp(page, "HTTP/1.1 200 ", 13) && !strcmp(strstr(page, "\r\n\r\n"), "\r\n\r\n"));
    free(page);
    page = ask("GET /metrics?name[]=x HTTP/1.1\n\n");
    check_format(page);
    free(page);
    page = ask("\n\n");
    CHECK(!strncmp(page, "HTTP/1.1 405 ", 13));
    free(page);
}

static int status_of(const char *path, const char *address)
{
    const pid_t pid = fork();
    int status;

    CHECK(pid >= 0);
    if (!pid) {
        CHECK(freopen("/dev/null", "w", stderr));
        execl(path, path, "--serve", address, "true", (char *)NULL);
        _exit(125);
    }
    CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void addresses(const char *path)
{
    static const char *const wrong[] = {
        "", ":", "x", "70000", "127.0.0.1:", ":80x", "[::1:80", "::1:80", "-1", "localhost:0"};
    char taken[40];

    for (size_t n = 0; n < sizeof wrong / sizeof *wrong; n++) {
        if (status_of(path, wrong[n]) != 126)
            FAIL("\"%s\" was taken for an address", wrong[n]);
    }
    snprintf(taken, sizeof taken, "127.0.0.1:%u", ntohs(where.sin_port));
    CHECK_EQ(status_of(path, taken), 126);
    CHECK_EQ(status_of(path, "127.0.0.1:0"), 0);
}

int main(int argc, char **argv)
{
    int status;

    if (argc != 2)
        FAIL("usage: test_serve TOOL");
    if (!strcmp(argv[1], "program"))
        return program();
    alarm(250);
    start(argv[1]);
    counts();
    strangers();
    addresses(argv[1]);
    fails();
    go();
    CHECK(waitpid(tool, &status, 0) == tool && WIFEXITED(status));
    CHECK_EQ(WEXITSTATUS(status), 7);
    return 0;
}
