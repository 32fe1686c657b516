/*
 * Maps and queues that stories are made of.
 */
#include <stdlib.h>
#include <string.h>

#include "trace/explain/explain.h"

static size_t place(const struct map *map, uint64_t key)
{
	return (size_t)((key * 0x9e3779b97f4a7c15u) >> 20) & (map->room - 1);
}

static struct map_entry *entry(const struct map *map, uint64_t key)
{
	size_t i = place(map, key);

	while (map->entries[i].value && map->entries[i].key != key)
		i = (i + 1) & (map->room - 1);
	return &map->entries[i];
}

static bool grow(struct map *map)
{
	struct map larger = { .room = map->room ? map->room * 2 : 64, .count = map->count };

	larger.entries = calloc(larger.room, sizeof(*larger.entries));
	if (!larger.entries)
		return false;
	for (size_t i = 0; i < map->room; i++) {
		if (map->entries[i].value)
			*entry(&larger, map->entries[i].key) = map->entries[i];
	}
	free(map->entries);
	*map = larger;
	return true;
}

bool map_put(struct map *map, uint64_t key, uint32_t value)
{
	struct map_entry *at;

	if ((map->count + 1) * 2 > map->room && !grow(map))
		return false;
	at = entry(map, key);
	map->count += !at->value;
	*at = (struct map_entry){ key, value + 1 };
	return true;
}

long map_get(const struct map *map, uint64_t key)
{
	return map->room ? (long)entry(map, key)->value - 1 : -1;
}

void map_free(struct map *map)
{
	free(map->entries);
	*map = (struct map){ 0 };
}

bool queue_push(struct queue *queue, size_t item)
{
	if (queue->tail == queue->room) {
		const size_t length = queue_length(queue);
		if (queue->head > queue->room / 2) {
			memmove(queue->items, queue->items + queue->head, length * sizeof(*queue->items));
		} else {
			const size_t room = queue->room ? queue->room * 2 : 16;
			size_t *larger = malloc(room * sizeof(*larger));
			if (!larger)
				return false;
			if (length)
				memcpy(larger, queue->items + queue->head, length * sizeof(*larger));
			free(queue->items);
			queue->items = larger;
			queue->room = room;
		}
		queue->head = 0;
		queue->tail = length;
	}
	queue->items[queue->tail++] = item;
	return true;
}

void queue_drop(struct queue *queue, size_t count)
{
	queue->head += count;
	if (queue->head == queue->tail)
		queue->head = queue->tail = 0;
}

void queue_remove(struct queue *queue, size_t n)
{
	size_t *at = queue->items + queue->head;

	if (n)
		memmove(at + 1, at, n * sizeof(*at));
	queue_drop(queue, 1);
}

void queue_free(struct queue *queue)
{
	free(queue->items);
	*queue = (struct queue){ 0 };
}

void latency_add(struct latencies *to, uint64_t ns)
{
	unsigned bucket = ns ? 64 - (unsigned)__builtin_clzll(ns) : 0;

	to->least = !to->count || ns < to->least ? ns : to->least;
	to->most = ns > to->most ? ns : to->most;
	to->count++;
	to->sum += ns;
	to->buckets[bucket < LATENCY_BUCKETS ? bucket : LATENCY_BUCKETS - 1]++;
}

uint64_t latency_part(const struct latencies *of, double part)
{
	const uint64_t wanted = (uint64_t)(part * (double)of->count);
	uint64_t seen = 0;

	for (unsigned i = 0; i < LATENCY_BUCKETS; i++) {
		seen += of->buckets[i];
		if (seen > wanted) {
			const uint64_t bound = UINT64_C(1) << i;
			return bound < of->most ? bound : of->most;
		}
	}
	return of->most;
}
