/*
 * Names by which the processes of one host find each other: abstract sockets, and a directory for those that are files.
 *
 * They are a part of the protocol between processes, like the bytes that these send. The first builds were a part of a
 * Python package, whose name is in them. A process of such a build looks for these names, and claims a slot (the high
 * bits of its queue pairs' numbers) by one of them. By other names, two processes of a host could have one slot and so
 * the same queue pair numbers.
 */
#ifndef SOFTDEV_NAMES_H
#define SOFTDEV_NAMES_H

#define SOFT_HOME_NAME "aiordma"
#define SOFT_SLOT_NAME "aiordma-soft"
#define SOFT_CM_NAME "aiordma-cm"
#define SOFT_WIRE_NAME "aiordma-wire"

#endif
