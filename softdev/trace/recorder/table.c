/*
 * A table from addresses of objects to what was replaced in them. Readers take no lock.
 */
#include <pthread.h>
#include <stdlib.h>

#include "trace/recorder/recorder.h"

enum { ENTRIES = 1 << 14 };

static struct entry {
	_Atomic(const void *) object; /* NULL: never used */
	_Atomic(void *) value;        /* NULL: gone */
} entries[ENTRIES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static unsigned place(const void *object)
{
	const uint64_t hash = (uint64_t)(uintptr_t)object * 0x9e3779b97f4a7c15u;

	return (unsigned)(hash >> 50);
}

void *trace_find(const void *object)
{
	for (unsigned i = place(object), n = 0; n < ENTRIES; i = (i + 1) % ENTRIES, n++) {
		const void *there = atomic_load_explicit(&entries[i].object, memory_order_acquire);
		if (there == object)
			return atomic_load_explicit(&entries[i].value, memory_order_acquire);
		if (!there)
			return NULL;
	}
	return NULL;
}

/*
 * Entries are never moved, as readers may be on their way past them. That of an object that has gone is free for
 * another one: nobody looks for the first any more.
 */
bool trace_enter(const void *object, void *value)
{
	struct entry *at = NULL;

	pthread_mutex_lock(&lock);
	for (unsigned i = place(object), n = 0; n < ENTRIES; i = (i + 1) % ENTRIES, n++) {
		const void *there = atomic_load_explicit(&entries[i].object, memory_order_relaxed);
		if (there == object) {
			at = &entries[i];
			break;
		}
		if (!at && !atomic_load_explicit(&entries[i].value, memory_order_relaxed))
			at = &entries[i];
		if (!there)
			break;
	}
	if (at) {
		atomic_store_explicit(&at->value, value, memory_order_release);
		atomic_store_explicit(&at->object, object, memory_order_release);
	}
	pthread_mutex_unlock(&lock);
	return at != NULL;
}

void trace_leave(const void *object)
{
	if (trace_find(object))
		trace_enter(object, NULL);
}

void trace_leave_as(const void *object, const void *value)
{
	pthread_mutex_lock(&lock);
	for (unsigned i = place(object), n = 0; n < ENTRIES; i = (i + 1) % ENTRIES, n++) {
		const void *there = atomic_load_explicit(&entries[i].object, memory_order_relaxed);
		if (there == object && atomic_load_explicit(&entries[i].value, memory_order_relaxed) == value)
			atomic_store_explicit(&entries[i].value, NULL, memory_order_release);
		if (!there || there == object)
			break;
	}
	pthread_mutex_unlock(&lock);
}
