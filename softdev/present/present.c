/*
 * A library that is preloaded: paths of RDMA devices in /sys and /dev lead into a tree that `softdev tree` has made
 * (SOFTDEV_TREE names it). What the tree does not have is the kernel's.
 *
 * It stands by itself: a program that does not scan does not need it, and the device does not know of it. Calls that the
 * C library makes inside of itself (fts, nftw, glob) and programs without it (static ones, Go's) are not reached; for
 * them the tree can be mounted.
 */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/xattr.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
/* The function of that name in the library behind this one. NULL: it has none. */
#define NEXT(name)                                                                                                     \
	({                                                                                                             \
		static void *cached_;                                                                                  \
		void *f_ = __atomic_load_n(&cached_, __ATOMIC_RELAXED);                                                \
		if (!f_) {                                                                                             \
			f_ = dlsym(RTLD_NEXT, #name);                                                                  \
			__atomic_store_n(&cached_, f_, __ATOMIC_RELAXED);                                              \
		}                                                                                                      \
		(__typeof__(&name))f_;                                                                                 \
	})

/* ---- which paths -------------------------------------------------------------------------------------- */

static bool is_below(const char *path, const char *folder)
{
	const size_t length = strlen(folder);

	return !strncmp(path, folder, length) && (!path[length] || path[length] == '/');
}

static const char net[] = "/sys/class/net/";

/* An absolute path that the tree may have. */
static bool is_ours(const char *path)
{
	static const char *const folders[] = { "/sys/class/infiniband", "/sys/class/infiniband_verbs",
					       "/sys/class/infiniband_mad", "/dev/infiniband" };

	if (path[0] != '/' || (path[1] != 's' && path[1] != 'd'))
		return false;
	for (size_t n = 0; n < sizeof(folders) / sizeof(*folders); n++) {
		if (is_below(path, folders[n]))
			return true;
	}
	return !strncmp(path, net, sizeof(net) - 1) && path[sizeof(net) - 1];
}

static bool is_there(const char *path)
{
	struct stat found;

	return !syscall(SYS_newfstatat, AT_FDCWD, path, &found, AT_SYMLINK_NOFOLLOW);
}

/* Whether that interface of the tree is a port of the device. The others are the kernel's alone, and may come and go. */
static bool is_port(const char *tree, const char *path)
{
	char device[PATH_MAX];
	const int name = (int)strcspn(path + sizeof(net) - 1, "/");
	const int length =
		snprintf(device, sizeof(device), "%s%.*s/device/infiniband", tree, (int)sizeof(net) - 1 + name, path);

	return length > 0 && (size_t)length < sizeof(device) && is_there(device);
}

/* The directory that a relative path begins at. False: it is not known. */
static bool base_of(int at, char base[PATH_MAX])
{
	char name[64];
	long length;

	if (at == AT_FDCWD) {
		length = syscall(SYS_getcwd, base, PATH_MAX); /* with its end */
		return length > 1 && base[0] == '/';
	}
	snprintf(name, sizeof(name), "/proc/self/fd/%d", at);
	length = syscall(SYS_readlinkat, AT_FDCWD, name, base, PATH_MAX - 1);
	if (length <= 0)
		return false;
	base[length] = '\0';
	return base[0] == '/';
}

/* The path below the tree if the tree has it; else as it was. Keeps errno. */
static const char *lead(int at, const char *path, char to[PATH_MAX])
{
	char base[PATH_MAX], whole[PATH_MAX];
	const char *tree, *asked = path;
	const int saved = errno;

	if (!path || !*path)
		return path;
	if (path[0] != '/') {
		/* Not each relative path is worth a look at where it begins. */
		if (!strstr(path, "infiniband") || !base_of(at, base))
			goto as_it_was;
		if (snprintf(whole, sizeof(whole), "%s/%s", strcmp(base, "/") != 0 ? base : "", path) >= PATH_MAX)
			goto as_it_was;
		asked = whole;
	}
	tree = getenv("SOFTDEV_TREE");
	if (!is_ours(asked) || !tree || *tree != '/' || snprintf(to, PATH_MAX, "%s%s", tree, asked) >= PATH_MAX)
		goto as_it_was;
	if ((!strncmp(asked, net, sizeof(net) - 1) && !is_port(tree, asked)) || !is_there(to))
		goto as_it_was;
	errno = saved;
	return to;
as_it_was:
	errno = saved;
	return path;
}

/* The C library's headers name their parameters otherwise, with underscores. */
/* NOLINTBEGIN(readability-inconsistent-declaration-parameter-name) */

/* ---- open --------------------------------------------------------------------------------------------- */

static mode_t mode_of(int flags, va_list *arguments)
{
	return flags & O_CREAT || (flags & O_TMPFILE) == O_TMPFILE ? va_arg(*arguments, mode_t) : 0;
}

#define OPEN(name)                                                                                                     \
	EXPORT int name(const char *path, int flags, ...)                                                              \
	{                                                                                                              \
		char to[PATH_MAX];                                                                                     \
		va_list arguments;                                                                                     \
                                                                                                                       \
		va_start(arguments, flags);                                                                            \
		const mode_t mode = mode_of(flags, &arguments);                                                        \
		va_end(arguments);                                                                                     \
		return NEXT(name)(lead(AT_FDCWD, path, to), flags, mode);                                              \
	}
#define OPENAT(name)                                                                                                   \
	EXPORT int name(int at, const char *path, int flags, ...)                                                      \
	{                                                                                                              \
		char to[PATH_MAX];                                                                                     \
		va_list arguments;                                                                                     \
                                                                                                                       \
		va_start(arguments, flags);                                                                            \
		const mode_t mode = mode_of(flags, &arguments);                                                        \
		va_end(arguments);                                                                                     \
		return NEXT(name)(at, lead(at, path, to), flags, mode);                                                \
	}
OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)

/* What <fcntl.h> makes of open() with _FORTIFY_SOURCE. */
int __open_2(const char *path, int flags);
int __open64_2(const char *path, int flags);
int __openat_2(int at, const char *path, int flags);
int __openat64_2(int at, const char *path, int flags);
EXPORT int __open_2(const char *path, int flags)
{
	return open(path, flags);
}
EXPORT int __open64_2(const char *path, int flags)
{
	return open64(path, flags);
}
EXPORT int __openat_2(int at, const char *path, int flags)
{
	return openat(at, path, flags);
}
EXPORT int __openat64_2(int at, const char *path, int flags)
{
	return openat64(at, path, flags);
}

EXPORT FILE *fopen(const char *path, const char *mode)
{
	char to[PATH_MAX];

	return NEXT(fopen)(lead(AT_FDCWD, path, to), mode);
}
EXPORT FILE *fopen64(const char *path, const char *mode)
{
	char to[PATH_MAX];

	return NEXT(fopen64)(lead(AT_FDCWD, path, to), mode);
}

/* ---- directories -------------------------------------------------------------------------------------- */

EXPORT DIR *opendir(const char *path)
{
	char to[PATH_MAX];

	return NEXT(opendir)(lead(AT_FDCWD, path, to));
}
EXPORT int chdir(const char *path)
{
	char to[PATH_MAX];

	return NEXT(chdir)(lead(AT_FDCWD, path, to));
}
EXPORT int scandir(const char *path, struct dirent ***list, int (*wanted)(const struct dirent *),
		   int (*order)(const struct dirent **, const struct dirent **))
{
	char to[PATH_MAX];

	return NEXT(scandir)(lead(AT_FDCWD, path, to), list, wanted, order);
}
EXPORT int scandir64(const char *path, struct dirent64 ***list, int (*wanted)(const struct dirent64 *),
		     int (*order)(const struct dirent64 **, const struct dirent64 **))
{
	char to[PATH_MAX];

	return NEXT(scandir64)(lead(AT_FDCWD, path, to), list, wanted, order);
}

/* ---- stat --------------------------------------------------------------------------------------------- */

/* Programs for glibc before 2.33 call these. */
int __xstat(int version, const char *path, struct stat *found);
int __lxstat(int version, const char *path, struct stat *found);
int __fxstatat(int version, int at, const char *path, struct stat *found, int flags);
int __xstat64(int version, const char *path, struct stat64 *found);
int __lxstat64(int version, const char *path, struct stat64 *found);
int __fxstatat64(int version, int at, const char *path, struct stat64 *found, int flags);

#define STAT(suffix)                                                                                                   \
	EXPORT int stat##suffix(const char *path, struct stat##suffix *found)                                          \
	{                                                                                                              \
		char to[PATH_MAX];                                                                                     \
		return NEXT(stat##suffix)(lead(AT_FDCWD, path, to), found);                                            \
	}                                                                                                              \
	EXPORT int lstat##suffix(const char *path, struct stat##suffix *found)                                         \
	{                                                                                                              \
		char to[PATH_MAX];                                                                                     \
		return NEXT(lstat##suffix)(lead(AT_FDCWD, path, to), found);                                           \
	}                                                                                                              \
	EXPORT int fstatat##suffix(int at, const char *path, struct stat##suffix *found, int flags)                    \
	{                                                                                                              \
		char to[PATH_MAX];                                                                                     \
		return NEXT(fstatat##suffix)(at, lead(at, path, to), found, flags);                                    \
	}                                                                                                              \
	EXPORT int __xstat##suffix(int version, const char *path, struct stat##suffix *found)                          \
	{                                                                                                              \
		char to[PATH_MAX];                                                                                     \
		return NEXT(__xstat##suffix)(version, lead(AT_FDCWD, path, to), found);                                \
	}                                                                                                              \
	EXPORT int __lxstat##suffix(int version, const char *path, struct stat##suffix *found)                         \
	{                                                                                                              \
		char to[PATH_MAX];                                                                                     \
		return NEXT(__lxstat##suffix)(version, lead(AT_FDCWD, path, to), found);                               \
	}                                                                                                              \
	EXPORT int __fxstatat##suffix(int version, int at, const char *path, struct stat##suffix *found, int flags)    \
	{                                                                                                              \
		char to[PATH_MAX];                                                                                     \
		return NEXT(__fxstatat##suffix)(version, at, lead(at, path, to), found, flags);                        \
	}
STAT()
STAT(64)

EXPORT int statx(int at, const char *restrict path, int flags, unsigned mask, struct statx *restrict found)
{
	char to[PATH_MAX];

	return NEXT(statx)(at, lead(at, path, to), flags, mask, found);
}
EXPORT int access(const char *path, int how)
{
	char to[PATH_MAX];

	return NEXT(access)(lead(AT_FDCWD, path, to), how);
}
EXPORT int eaccess(const char *path, int how)
{
	char to[PATH_MAX];

	return NEXT(eaccess)(lead(AT_FDCWD, path, to), how);
}
EXPORT int euidaccess(const char *path, int how)
{
	char to[PATH_MAX];

	return NEXT(euidaccess)(lead(AT_FDCWD, path, to), how);
}
EXPORT int faccessat(int at, const char *path, int how, int flags)
{
	char to[PATH_MAX];

	return NEXT(faccessat)(at, lead(at, path, to), how, flags);
}

/* `ls -l` asks for access control lists by this. */
EXPORT ssize_t getxattr(const char *path, const char *name, void *value, size_t size)
{
	char to[PATH_MAX];

	return NEXT(getxattr)(lead(AT_FDCWD, path, to), name, value, size);
}
EXPORT ssize_t lgetxattr(const char *path, const char *name, void *value, size_t size)
{
	char to[PATH_MAX];

	return NEXT(lgetxattr)(lead(AT_FDCWD, path, to), name, value, size);
}

/* ---- links -------------------------------------------------------------------------------------------- */

ssize_t __readlink_chk(const char *path, char *to, size_t size, size_t room);
ssize_t __readlinkat_chk(int at, const char *path, char *to, size_t size, size_t room);
char *__realpath_chk(const char *path, char *to, size_t room);

EXPORT ssize_t readlink(const char *restrict path, char *restrict to, size_t size)
{
	char led[PATH_MAX];

	return NEXT(readlink)(lead(AT_FDCWD, path, led), to, size);
}
EXPORT ssize_t readlinkat(int at, const char *restrict path, char *restrict to, size_t size)
{
	char led[PATH_MAX];

	return NEXT(readlinkat)(at, lead(at, path, led), to, size);
}
EXPORT ssize_t __readlink_chk(const char *path, char *to, size_t size, size_t room)
{
	char led[PATH_MAX];

	return NEXT(__readlink_chk)(lead(AT_FDCWD, path, led), to, size, room);
}
EXPORT ssize_t __readlinkat_chk(int at, const char *path, char *to, size_t size, size_t room)
{
	char led[PATH_MAX];

	return NEXT(__readlinkat_chk)(at, lead(at, path, led), to, size, room);
}

/* The program asked for a path of the system's, and gets one. */
EXPORT char *realpath(const char *restrict path, char *restrict to)
{
	char led[PATH_MAX];
	const char *tree = getenv("SOFTDEV_TREE");
	char *whole = NEXT(realpath)(lead(AT_FDCWD, path, led), to);
	const size_t length = tree ? strlen(tree) : 0;

	if (whole && length && !strncmp(whole, tree, length) && whole[length] == '/')
		memmove(whole, whole + length, strlen(whole + length) + 1);
	return whole;
}
EXPORT char *__realpath_chk(const char *path, char *to, size_t room)
{
	(void)room; /* PATH_MAX at least, or __chk_fail() would be called at once */
	return realpath(path, to);
}
EXPORT char *canonicalize_file_name(const char *path)
{
	return realpath(path, NULL);
}
/* NOLINTEND(readability-inconsistent-declaration-parameter-name) */
