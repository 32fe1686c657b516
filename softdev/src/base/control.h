/*
 * The name of the socket by which another process asks for faults, and for the recorder: this, the user's number, and the
 * process's.
 */
#ifndef SOFTDEV_CONTROL_H
#define SOFTDEV_CONTROL_H

#define SOFT_CONTROL_NAME "softdev-control"
/* A request that begins with this is for the recorder; the rest is the path of a directory. All others are faults'. */
#define SOFT_CONTROL_TRACE "trace "

#endif
