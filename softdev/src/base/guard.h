/*
 * Copies that outlive the memory they go to or come from: a program may unmap or protect what it has registered.
 *
 * A card writes to pages that the kernel has pinned. Here the processor copies, and finds no page, or one without the
 * right to write. The kernel says so by SIGSEGV, or SIGBUS behind the end of a file. A handler ends the copy then, and
 * it is false. Signals that come from anything else go to where they went before: the program's handler, or the end.
 *
 * The handler is there from the first registration on (soft_guard_install()). A program that sets one of its own
 * afterwards, and does not call the one before, ends copies by it as if there were no guard.
 */
#ifndef SOFT_GUARD_H
#define SOFT_GUARD_H

#include <stdbool.h>
#include <stddef.h>

#if defined(__SANITIZE_THREAD__)
/* ThreadSanitizer's handler blocks all signals, and has to see that it is left. */
#include <setjmp.h>
typedef sigjmp_buf soft_jump;
#define soft_set_jump(jump) sigsetjmp(jump, 1)
#define soft_do_jump(jump) siglongjmp(jump, 1)
#elif defined(__x86_64__)
/* The compiler's own is a tenth of the C library's, and not everywhere. */
typedef void *soft_jump[5];
#define soft_set_jump(jump) __builtin_setjmp(jump)
#define soft_do_jump(jump) __builtin_longjmp(jump, 1)
#else
#include <setjmp.h>
typedef jmp_buf soft_jump;
#define soft_set_jump(jump) _setjmp(jump)
#define soft_do_jump(jump) longjmp(jump, 1)
#endif

/*
 * Sets where this thread goes when memory is missing; NULL: nowhere. Not a variable of the thread: the handler would have
 * to ask the dynamic linker for it, which may allocate, or the library could not be loaded late.
 */
void soft_guard_at(soft_jump *jump);

/*
 * Whether `act` came to its end. A function that has it is never inlined, and changes no variable of its own in `act`
 * that it needs afterwards.
 */
#define SOFT_GUARDED(act)                                                                                              \
	({                                                                                                             \
		soft_jump jump_;                                                                                       \
		const bool whole_ = !soft_set_jump(jump_);                                                             \
		if (whole_) {                                                                                          \
			soft_guard_at(&jump_);                                                                         \
			__asm__ volatile("" ::: "memory"); /* all of it is between both */                             \
			act;                                                                                           \
			__asm__ volatile("" ::: "memory");                                                             \
		}                                                                                                      \
		soft_guard_at(NULL);                                                                                   \
		whole_;                                                                                                \
	})

void soft_guard_install(void);
/*
 * soft_copy(), the last bytes last. False: memory was missing; what stands before it has been
 * copied then, by lines of 64 bytes.
 */
bool soft_guard_copy(void *to, const void *from, size_t n);
/* Whether every page of it can be read, or written as well. Nothing is changed. */
bool soft_guard_probe(void *at, size_t n, bool write);

#endif
