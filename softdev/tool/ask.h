/*
 * Requests to a process that runs on the device.
 */
#ifndef SOFTDEV_ASK_H
#define SOFTDEV_ASK_H

#include <sys/types.h>

/*
 * Sends one request. Returns 0 or the errno that the process answers, whose words are at *said until the next call; -1: it
 * does not answer, which standard error says in the command's name.
 */
int control_ask(const char *command, pid_t pid, const char *request, const char **said);

#endif
