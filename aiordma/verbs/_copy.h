/*
 * Copies of payload: memmove(), but for one case in which it is slow.
 *
 * The C library copies 4 KiB and more by "rep movsb" where the CPU announces it. AMD's Zen 3 needs 10 to 30 times
 * as long for that as for ordinary loads and stores if the target is 1 to 31 bytes ahead of the source modulo
 * 4096, and twice as long up to about 100 bytes (measured with glibc 2.36: 64 KiB at 1.9 and 21 GB/s instead of 47). A
 * bytes object of malloc() starts 48 bytes behind a page, and what a ring holds starts wherever the last message ended,
 * so a stream of 1 MiB messages ran at 1.7 GB/s or at 12, by its first few bytes.
 */
#ifndef AIO_COPY_H
#define AIO_COPY_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum {
	AIO_COPY_LONG = 2048,  /* glibc takes ordinary loads and stores for less */
	AIO_COPY_PIECE = 1024, /* copied by loads and stores */
	AIO_COPY_PAGE = 4096,
	AIO_COPY_NEAR = 128, /* bytes ahead, modulo a page, that are avoided */
};

/* Whether memmove() may be slow. If the two overlap, the answer is no: their order matters then. */
static inline int aio_copy_is_slow(const void *to, const void *from, size_t n)
{
#ifdef __x86_64__
	size_t ahead = (uintptr_t)to - (uintptr_t)from;
	return n >= AIO_COPY_LONG && ahead % AIO_COPY_PAGE - 1 < AIO_COPY_NEAR - 1 && ahead >= n && -ahead >= n;
#else
	(void)to, (void)from, (void)n;
	return 0;
#endif
}

static inline void aio_copy(void *to, const void *from, size_t n)
{
	if (__builtin_expect(aio_copy_is_slow(to, from, n), 0)) {
		char *t = (char *)to;
		const char *f = (const char *)from;
		for (size_t piece; n; t += piece, f += piece, n -= piece) {
			piece = n < AIO_COPY_PIECE ? n : AIO_COPY_PIECE;
			/* Of a size that it knows, the compiler makes a "rep movsq" of its own. */
			__asm__("" : "+r"(piece));
			memcpy(t, f, piece);
		}
	} else {
		memmove(to, from, n);
	}
}

#endif
