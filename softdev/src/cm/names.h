/*
 * Names of the sockets behind cm/bus.h, for the files of the bus only.
 */
#ifndef SOFTDEV_CM_NAMES_H
#define SOFTDEV_CM_NAMES_H

#include <sys/un.h>

#include "cm/bus.h"

/* Where a name lives: each socket of the bus has one in each place. */
enum { CM_ABSTRACT, CM_FILE };

/* Its length; 0: there is none in that place. */
socklen_t cm_name_process(int place, uint32_t slot, struct sockaddr_un *to);
socklen_t cm_name_port(int place, const struct cm_port *port, struct sockaddr_un *to);

#endif
