/*
 * A server of one page for Prometheus. Clients are not trusted: there are a few at a time, each has a limit in bytes and in
 * time, and nobody is waited for.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "trace/tool/serve.h"

enum { PATIENCE_MS = 5000 };

/* "9400", "127.0.0.1:9400", "[::1]:9400" */
static bool split(const char *where, char host[64], char port[8])
{
	const char *colon = strrchr(where, ':'), *begin = where, *end = colon;
	const char *number = colon ? colon + 1 : where;

	if (!colon) {
		snprintf(host, 64, "127.0.0.1");
	} else {
		if (*begin == '[' && end > begin + 1 && end[-1] == ']') {
			begin++;
			end--;
		} else if (memchr(begin, ':', (size_t)(end - begin))) {
			return false;
		}
		if (end == begin || end - begin > 63)
			return false;
		snprintf(host, 64, "%.*s", (int)(end - begin), begin);
	}
	const size_t length = strlen(number);
	if (!length || length > 5 || strspn(number, "0123456789") != length || strtol(number, NULL, 10) > 65535)
		return false;
	snprintf(port, 8, "%s", number);
	return true;
}

bool serve_begin(struct server *server, const char *where)
{
	const struct addrinfo hints = { .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV | AI_PASSIVE,
					.ai_socktype = SOCK_STREAM };
	struct sockaddr_storage own;
	struct addrinfo *at = NULL;
	socklen_t length = sizeof(own);
	char host[64], port[8];
	const int on = 1;

	memset(server, 0, sizeof(*server));
	server->fd = -1;
	for (size_t n = 0; n < SERVE_CLIENTS; n++)
		server->clients[n].fd = -1;
	if (!split(where, host, port) || getaddrinfo(host, port, &hints, &at)) {
		fprintf(stderr, "softdev: \"%s\" is no [ADDRESS:]PORT\n", where);
		return false;
	}
	server->fd = socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	const bool good = server->fd >= 0 && !setsockopt(server->fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) &&
			  !bind(server->fd, at->ai_addr, at->ai_addrlen) && !listen(server->fd, 16) &&
			  !getsockname(server->fd, (struct sockaddr *)&own, &length) &&
			  !getnameinfo((struct sockaddr *)&own, length, host, sizeof(host), port, sizeof(port),
				       NI_NUMERICHOST | NI_NUMERICSERV);
	freeaddrinfo(at);
	if (!good) {
		fprintf(stderr, "softdev: %s: %s\n", where, strerror(errno));
		serve_end(server);
		return false;
	}
	const bool six = strchr(host, ':') != NULL;
	fprintf(stderr, "softdev: metrics are at http://%s%s%s:%s/metrics\n", six ? "[" : "", host, six ? "]" : "",
		port);
	return true;
}

static void leave(struct serve_client *client)
{
	close(client->fd);
	free(client->answer);
	memset(client, 0, sizeof(*client));
	client->fd = -1;
}

void serve_end(struct server *server)
{
	for (size_t n = 0; n < SERVE_CLIENTS; n++) {
		if (server->clients[n].fd >= 0)
			leave(&server->clients[n]);
	}
	if (server->fd >= 0)
		close(server->fd);
	server->fd = -1;
}

/* One that has room, else the one that has taken longest to ask. NULL: all get their answers. */
static struct serve_client *place(struct server *server)
{
	struct serve_client *at = NULL;

	for (size_t n = 0; n < SERVE_CLIENTS; n++) {
		struct serve_client *one = &server->clients[n];
		if (one->fd < 0)
			return one;
		if (!one->answer && (!at || one->until_ms < at->until_ms))
			at = one;
	}
	return at;
}

size_t serve_wants(const struct server *server, struct pollfd *fds)
{
	bool room = false;

	for (size_t n = 0; n < SERVE_CLIENTS; n++) {
		const struct serve_client *one = &server->clients[n];
		room |= !one->answer;
		fds[n] = (struct pollfd){ .fd = one->fd, .events = one->answer ? POLLOUT : POLLIN };
	}
	fds[SERVE_CLIENTS] = (struct pollfd){ .fd = room ? server->fd : -1, .events = POLLIN };
	return SERVE_CLIENTS + 1;
}

static void accept_one(struct server *server, uint64_t now_ms)
{
	struct serve_client *client = place(server);
	const int fd = client ? accept4(server->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK) : -1;

	if (fd < 0)
		return;
	if (client->fd >= 0)
		leave(client);
	client->fd = fd;
	client->until_ms = now_ms + PATIENCE_MS;
}

static void answer(struct serve_client *client, const char *status, const char *body, size_t length)
{
	size_t whole = 0;
	FILE *to = open_memstream(&client->answer, &whole);

	if (!to)
		return;
	fprintf(to,
		"HTTP/1.1 %s\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: %zu\r\n"
		"Connection: close\r\n\r\n",
		status, length);
	if (strncmp(client->request, "HEAD ", 5) != 0)
		fwrite(body, 1, length, to);
	if (fclose(to)) {
		free(client->answer);
		client->answer = NULL;
	}
	client->length = whole;
}

static void refuse(struct serve_client *client, const char *status)
{
	answer(client, status, "The metrics are at /metrics.\n", strlen("The metrics are at /metrics.\n"));
}

/* A whole request: its first line decides. */
static void decide(struct serve_client *client, serve_page page, void *with)
{
	char *path = strchr(client->request, ' ');
	size_t length = 0;

	if (strncmp(client->request, "GET ", 4) != 0 && strncmp(client->request, "HEAD ", 5) != 0) {
		refuse(client, "405 Method Not Allowed");
		return;
	}
	path++;
	const size_t end = strcspn(path, " ?\r\n");
	if (end != strlen("/metrics") || strncmp(path, "/metrics", end) != 0) {
		refuse(client, "404 Not Found");
		return;
	}
	const char *text = page(with, &length);
	if (text)
		answer(client, "200 OK", text, length);
	else
		refuse(client, "503 Service Unavailable");
}

static void take(struct serve_client *client, serve_page page, void *with)
{
	const ssize_t got =
		recv(client->fd, client->request + client->got, sizeof(client->request) - 1 - client->got, 0);

	if (got < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (got <= 0) {
		leave(client);
		return;
	}
	client->got += (size_t)got;
	client->request[client->got] = '\0';
	const bool whole = strstr(client->request, "\r\n\r\n") || strstr(client->request, "\n\n");
	if (whole)
		decide(client, page, with);
	else if (client->got == sizeof(client->request) - 1)
		refuse(client, "431 Request Header Fields Too Large");
	if (!client->answer && (whole || client->got == sizeof(client->request) - 1))
		leave(client); /* there is no memory */
}

static void give(struct serve_client *client)
{
	const ssize_t sent =
		send(client->fd, client->answer + client->sent, client->length - client->sent, MSG_NOSIGNAL);

	if (sent < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	client->sent += sent > 0 ? (size_t)sent : 0;
	if (sent <= 0 || client->sent == client->length)
		leave(client);
}

void serve_turn(struct server *server, const struct pollfd *fds, uint64_t now_ms, serve_page page, void *with)
{
	for (size_t n = 0; n < SERVE_CLIENTS; n++) {
		struct serve_client *client = &server->clients[n];
		if (client->fd < 0)
			continue;
		if (fds[n].revents && !client->answer)
			take(client, page, with);
		if (client->fd >= 0 && client->answer)
			give(client);
		if (client->fd >= 0 && now_ms >= client->until_ms)
			leave(client);
	}
	if (fds[SERVE_CLIENTS].revents)
		accept_one(server, now_ms);
}
