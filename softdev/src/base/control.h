/*
 * The name of the socket by which another process asks for faults: this, the user's number, and the process's.
 */
#ifndef SOFTDEV_CONTROL_H
#define SOFTDEV_CONTROL_H

#define SOFT_CONTROL_NAME "softdev-control"

#endif
