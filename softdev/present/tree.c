/*
 * softdev tree DIRECTORY: the files that a kernel has for RDMA devices, for programs that read them in place of asking
 * libibverbs: sys/class with infiniband, infiniband_verbs, infiniband_mad and net, and dev/infiniband below the directory.
 *
 * The values are the answers of the device itself to ibv_query_device(), ibv_query_port() and so on, at the time when the
 * tree is made. Devices and interfaces of the kernel stand in it as links to their own files.
 */
#include <dirent.h>
#include <dlfcn.h>
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <limits.h>
#include <net/if.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#undef ibv_get_device_list

static const char classes[] = "/sys/class/";
enum { MAX_GIDS = 1024, MAX_PORTS = 8, UVERBS_MAJOR = 231, UVERBS_MINOR = 192 };

struct library {
	struct ibv_device **(*get_device_list)(int *count);
	struct ibv_context *(*open_device)(struct ibv_device *device);
	int (*close_device)(struct ibv_context *context);
	int (*query_device)(struct ibv_context *context, struct ibv_device_attr *attr);
	int (*query_pkey)(struct ibv_context *context, uint8_t port, int index, __be16 *pkey);
	ssize_t (*query_gid_table)(struct ibv_context *context, struct ibv_gid_entry *entries, size_t count,
				   uint32_t flags, size_t size);
	int (*is_soft)(struct ibv_context *context);
};

/* ---- files -------------------------------------------------------------------------------------------- */

static void fail(const char *what, const char *path)
{
	fprintf(stderr, "softdev: %s %s: %s\n", what, path, strerror(errno));
	exit(1);
}

__attribute__((format(printf, 2, 3))) static void say(char path[PATH_MAX], const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	const int length = vsnprintf(path, PATH_MAX, format, arguments);
	va_end(arguments);
	if (length < 0 || length >= PATH_MAX) {
		errno = ENAMETOOLONG;
		fail("cannot make", path);
	}
}

/* And those above it. */
static void folder(const char *path)
{
	char part[PATH_MAX];

	say(part, "%s", path);
	for (char *c = part + 1;; c++) {
		const char was = *c;

		if (was && was != '/')
			continue;
		*c = '\0';
		if (mkdir(part, 0755) && errno != EEXIST)
			fail("cannot make", part);
		*c = was;
		if (!was)
			return;
	}
}

/* A file of one line, as most of sysfs. */
__attribute__((format(printf, 3, 4))) static void line(const char *at, const char *name, const char *format, ...)
{
	char path[PATH_MAX];
	va_list arguments;

	say(path, "%s/%s", at, name);
	unlink(path); /* of the tree before: its files are for reading only */
	const int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0444);
	if (fd < 0)
		fail("cannot make", path);
	va_start(arguments, format);
	const int written = vdprintf(fd, format, arguments);
	va_end(arguments);
	if (written < 0 || dprintf(fd, "\n") < 0 || close(fd))
		fail("cannot write", path);
}

static void link_to(const char *target, const char *at, const char *name)
{
	char path[PATH_MAX];

	say(path, "%s/%s", at, name);
	unlink(path);
	if (symlink(target, path))
		fail("cannot make", path);
}

/* Links to all that a directory of the kernel's has, and `at` has not. */
static void link_entries(const char *real, const char *at)
{
	DIR *dir = opendir(real);

	for (struct dirent *entry; dir && (entry = readdir(dir));) {
		char from[PATH_MAX], path[PATH_MAX], whole[PATH_MAX];
		struct stat found;

		say(from, "%s/%s", real, entry->d_name);
		say(path, "%s/%s", at, entry->d_name);
		/* Where it really is. What is nowhere else could not be reached when the tree has taken its place. */
		if (entry->d_name[0] != '.' && lstat(path, &found) && realpath(from, whole) &&
		    strncmp(whole, classes, sizeof(classes) - 1) != 0)
			link_to(whole, at, entry->d_name);
	}
	if (dir)
		closedir(dir);
}

/* All classes of the kernel's devices, so that the tree's can take their place as a whole. */
static void link_classes(const char *root)
{
	DIR *dir = opendir(classes);

	for (struct dirent *entry; dir && (entry = readdir(dir));) {
		char from[PATH_MAX], at[PATH_MAX];

		if (entry->d_name[0] == '.')
			continue;
		say(from, "%s%s", classes, entry->d_name);
		say(at, "%s%s", root, from);
		folder(at);
		link_entries(from, at);
	}
	if (dir)
		closedir(dir);
}

/* ---- a device ----------------------------------------------------------------------------------------- */

static const char *state_word(enum ibv_port_state state)
{
	static const char *const words[] = { "NOP", "DOWN", "INIT", "ARMED", "ACTIVE", "ACTIVE_DEFER" };

	return (unsigned)state < sizeof(words) / sizeof(*words) ? words[state] : "UNKNOWN";
}

static const char *phys_word(unsigned state)
{
	static const char *const words[] = {
		"NOP",     "Sleep", "Polling", "Disabled", "PortConfigurationTraining", "LinkUp", "LinkErrorRecovery",
		"Phy Test"
	};

	return state < sizeof(words) / sizeof(*words) ? words[state] : "<unknown>";
}

/* As the kernel's rate_show(): tenths of Gb/s of a lane, and the name of the speed. */
static void rate(const char *at, const struct ibv_port_attr *port)
{
	static const struct {
		unsigned speed, tenths;
		const char *name;
	} speeds[] = { { 1, 25, " SDR" },   { 2, 50, " DDR" },   { 4, 100, " QDR" },  { 8, 100, " FDR10" },
		       { 16, 140, " FDR" }, { 32, 250, " EDR" }, { 64, 500, " HDR" }, { 128, 1000, " NDR" } };
	static const struct {
		unsigned width, lanes;
	} widths[] = { { 1, 1 }, { 2, 4 }, { 4, 8 }, { 8, 12 }, { 16, 2 } };
	unsigned tenths = 25, lanes = 1;
	const char *name = "";

	for (size_t n = 0; n < sizeof(speeds) / sizeof(*speeds); n++) {
		if (speeds[n].speed == port->active_speed) {
			tenths = speeds[n].tenths;
			name = speeds[n].name;
		}
	}
	for (size_t n = 0; n < sizeof(widths) / sizeof(*widths); n++) {
		if (widths[n].width == port->active_width)
			lanes = widths[n].lanes;
	}
	tenths *= lanes;
	line(at, "rate", "%u%s Gb/sec (%uX%s)", tenths / 10, tenths % 10 ? ".5" : "", lanes, name);
}

/* mlx5's names, which monitors read. Each process's device counts for itself, so that there is nothing to show but 0. */
static void counters(const char *port)
{
	static const char *const names[] = { "VL15_dropped",
					     "excessive_buffer_overrun_errors",
					     "link_downed",
					     "link_error_recovery",
					     "local_link_integrity_errors",
					     "multicast_rcv_packets",
					     "multicast_xmit_packets",
					     "port_rcv_constraint_errors",
					     "port_rcv_data",
					     "port_rcv_errors",
					     "port_rcv_packets",
					     "port_rcv_remote_physical_errors",
					     "port_rcv_switch_relay_errors",
					     "port_xmit_constraint_errors",
					     "port_xmit_data",
					     "port_xmit_discards",
					     "port_xmit_packets",
					     "port_xmit_wait",
					     "symbol_error",
					     "unicast_rcv_packets",
					     "unicast_xmit_packets" };
	static const char *const hardware[] = {
		"duplicate_request", "implied_nak_seq_err",        "lifespan",       "local_ack_timeout_err",
		"np_cnp_sent",       "np_ecn_marked_roce_packets", "out_of_buffer",  "out_of_sequence",
		"packet_seq_err",    "rnr_nak_retry_err",          "rp_cnp_handled", "rx_icrc_encapsulated",
	};
	char at[PATH_MAX];

	say(at, "%s/counters", port);
	folder(at);
	for (size_t n = 0; n < sizeof(names) / sizeof(*names); n++)
		line(at, names[n], "0");
	say(at, "%s/hw_counters", port);
	folder(at);
	for (size_t n = 0; n < sizeof(hardware) / sizeof(*hardware); n++)
		line(at, hardware[n], "%d", strcmp(hardware[n], "lifespan") ? 0 : 10);
}

static void gid_text(char text[40], const union ibv_gid *gid)
{
	for (unsigned n = 0; n < 8; n++)
		snprintf(text + (size_t)n * 5, n < 7 ? 6 : 5, n < 7 ? "%02x%02x:" : "%02x%02x", gid->raw[2 * n],
			 gid->raw[2 * n + 1]);
}

struct made {
	const struct library *library;
	const char *root;
	struct ibv_context *context;
	const char *name;      /* soft0 */
	char device[PATH_MAX]; /* its directory */
	unsigned uverbs;
};

/* The interface has a device, and that the RDMA device, as an adapter's. */
static void interface_of(const struct made *made, const char *interface)
{
	char at[PATH_MAX], path[PATH_MAX], real[PATH_MAX];

	say(path, "/sys/class/net/%s", interface);
	if (access(path, F_OK))
		return;
	say(at, "%s/sys/class/net/%s/device/infiniband", made->root, interface);
	folder(at);
	/* Relative links stay in the tree, wherever it is; those to the kernel's own files leave it. */
	say(path, "../../../../infiniband/%s", made->name);
	link_to(path, at, made->name);
	say(at, "%s/sys/class/net/%s/device", made->root, interface);
	say(real, "/sys/class/net/%s/device", interface);
	link_entries(real, at);
	say(at, "%s/sys/class/net/%s", made->root, interface);
	say(real, "/sys/class/net/%s", interface);
	link_entries(real, at);
	say(at, "%s/device/net", made->device);
	folder(at);
	say(path, "../../../../net/%s", interface);
	link_to(path, at, interface);
}

static void gids(const struct made *made, unsigned number, const char *port, unsigned length)
{
	static const union ibv_gid none;
	struct ibv_gid_entry entries[MAX_GIDS];
	const ssize_t count = made->library->query_gid_table(made->context, entries, MAX_GIDS, 0, sizeof(*entries));
	char at[PATH_MAX], types[PATH_MAX], ndevs[PATH_MAX], name[16], text[40], interface[IF_NAMESIZE];

	say(at, "%s/gids", port);
	folder(at);
	say(types, "%s/gid_attrs/types", port);
	folder(types);
	say(ndevs, "%s/gid_attrs/ndevs", port);
	folder(ndevs);
	gid_text(text, &none);
	for (unsigned n = 0; n < length; n++) {
		snprintf(name, sizeof(name), "%u", n);
		line(at, name, "%s", text);
	}
	for (ssize_t n = 0; n < count; n++) {
		if (entries[n].port_num != number)
			continue;
		snprintf(name, sizeof(name), "%u", entries[n].gid_index);
		gid_text(text, &entries[n].gid);
		line(at, name, "%s", text);
		line(types, name, "%s", entries[n].gid_type == IBV_GID_TYPE_ROCE_V2 ? "RoCE v2" : "IB/RoCE v1");
		if (if_indextoname(entries[n].ndev_ifindex, interface)) {
			line(ndevs, name, "%s", interface);
			interface_of(made, interface);
		}
	}
}

static void port(const struct made *made, unsigned number)
{
	const struct verbs_context *verbs = verbs_get_ctx(made->context);
	struct ibv_port_attr is = { 0 };
	char at[PATH_MAX], keys[PATH_MAX], name[16];

	if (!verbs || verbs->query_port(made->context, (uint8_t)number, &is, sizeof(is)))
		return;
	say(at, "%s/ports/%u", made->device, number);
	folder(at);
	line(at, "state", "%d: %s", is.state, state_word(is.state));
	line(at, "phys_state", "%u: %s", is.phys_state, phys_word(is.phys_state));
	line(at, "lid", "0x%x", is.lid);
	line(at, "lid_mask_count", "%u", is.lmc);
	line(at, "sm_lid", "0x%x", is.sm_lid);
	line(at, "sm_sl", "%u", is.sm_sl);
	line(at, "cap_mask", "0x%08x", is.port_cap_flags);
	line(at, "link_layer", "%s", is.link_layer == IBV_LINK_LAYER_INFINIBAND ? "InfiniBand" : "Ethernet");
	rate(at, &is);
	counters(at);
	gids(made, number, at, (unsigned)is.gid_tbl_len);
	say(keys, "%s/pkeys", at);
	folder(keys);
	for (int n = 0; n < is.pkey_tbl_len; n++) {
		__be16 key = 0;

		made->library->query_pkey(made->context, (uint8_t)number, n, &key);
		snprintf(name, sizeof(name), "%d", n);
		line(keys, name, "0x%04x", be16toh(key));
	}
}

static void guid(const char *at, const char *name, __be64 number)
{
	const uint64_t is = be64toh(number);

	line(at, name, "%04x:%04x:%04x:%04x", (unsigned)(is >> 48), (unsigned)(is >> 32 & 0xffff),
	     (unsigned)(is >> 16 & 0xffff), (unsigned)(is & 0xffff));
}

static void parent(const struct made *made, const struct ibv_device_attr *is)
{
	char at[PATH_MAX], inner[PATH_MAX], path[PATH_MAX], name[32];

	say(at, "%s/device", made->device);
	folder(at);
	line(at, "vendor", "0x%04x", is->vendor_id & 0xffff);
	line(at, "device", "0x%04x", is->vendor_part_id & 0xffff);
	line(at, "numa_node", "-1");
	say(inner, "%s/infiniband", at);
	folder(inner);
	say(path, "../../../%s", made->name);
	link_to(path, inner, made->name);
	say(inner, "%s/infiniband_verbs", at);
	folder(inner);
	say(path, "../../../../infiniband_verbs/uverbs%u", made->uverbs);
	snprintf(name, sizeof(name), "uverbs%u", made->uverbs);
	link_to(path, inner, name);
}

static void uverbs(const struct made *made)
{
	char at[PATH_MAX], path[PATH_MAX], name[32];

	snprintf(name, sizeof(name), "uverbs%u", made->uverbs);
	say(at, "%s/sys/class/infiniband_verbs/%s", made->root, name);
	folder(at);
	line(at, "abi_version", "1");
	line(at, "ibdev", "%s", made->name);
	line(at, "dev", "%d:%u", UVERBS_MAJOR, UVERBS_MINOR + made->uverbs);
	say(path, "../../infiniband/%s/device", made->name);
	link_to(path, at, "device");
	/* A character device that no privilege is needed for. What is written to it fails: nothing takes it for a kernel. */
	say(at, "%s/dev/infiniband", made->root);
	link_to("/dev/full", at, name);
	/* Some look there for the name that the library gives, which with a kernel's device is the one above. */
	link_to("/dev/full", at, made->context->device->dev_name);
}

static void device(struct made *made)
{
	struct ibv_device_attr is;

	if (made->library->query_device(made->context, &is))
		fail("cannot query", made->name);
	say(made->device, "%s/sys/class/infiniband/%s", made->root, made->name);
	folder(made->device);
	line(made->device, "node_type", "%s", made->context->device->node_type == IBV_NODE_RNIC ? "4: RNIC" : "1: CA");
	line(made->device, "node_desc", "%s", made->name);
	line(made->device, "fw_ver", "%s", is.fw_ver);
	line(made->device, "hca_type", "softdev");
	line(made->device, "board_id", "softdev");
	line(made->device, "hw_rev", "0x%x", is.hw_ver);
	guid(made->device, "node_guid", is.node_guid);
	guid(made->device, "sys_image_guid", is.sys_image_guid);
	for (unsigned n = 1; n <= is.phys_port_cnt && n <= MAX_PORTS; n++)
		port(made, n);
	parent(made, &is);
	uverbs(made);
}

/* ---- all ---------------------------------------------------------------------------------------------- */

static void *symbol(void *library, const char *name)
{
	void *found = dlsym(library, name);

	if (!found) {
		fprintf(stderr, "softdev: %s\n", dlerror());
		exit(1);
	}
	return found;
}

/* The device is in the directory above this program's, in a build as where it is installed. */
static void open_library(struct library *to)
{
	char own[PATH_MAX], path[PATH_MAX];
	const ssize_t length = readlink("/proc/self/exe", own, sizeof(own) - 1);

	if (length <= 0)
		fail("cannot find", "/proc/self/exe");
	own[length] = '\0';
	say(path, "%.*s/../libsoftdev.so", (int)(strrchr(own, '/') - own), own);
	void *library = dlopen(path, RTLD_NOW);
	if (!library) {
		fprintf(stderr, "softdev: the device cannot be loaded: %s\n", dlerror());
		exit(1);
	}
	*(void **)&to->get_device_list = symbol(library, "ibv_get_device_list");
	*(void **)&to->open_device = symbol(library, "ibv_open_device");
	*(void **)&to->close_device = symbol(library, "ibv_close_device");
	*(void **)&to->query_device = symbol(library, "ibv_query_device");
	*(void **)&to->query_pkey = symbol(library, "ibv_query_pkey");
	*(void **)&to->query_gid_table = symbol(library, "_ibv_query_gid_table");
	*(void **)&to->is_soft = symbol(library, "softdev_is");
}

int main(int argc, char **argv)
{
	struct library library;
	char root[PATH_MAX], path[PATH_MAX];
	struct ibv_device **devices;
	unsigned uverbs_number = 0;
	int count = 0;

	if (argc != 2 || argv[1][0] == '-') {
		const bool asked = argc == 2 && (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h"));
		fputs("usage: softdev tree DIRECTORY\n\n"
		      "Makes what a kernel has for RDMA devices, with the software device's values as they are now, "
		      "in\n"
		      "DIRECTORY/sys/class/{infiniband,infiniband_verbs,infiniband_mad,net} and "
		      "DIRECTORY/dev/infiniband.\n"
		      "The kernel's own devices of all classes are in it as links, so that sys/class can be mounted "
		      "on\n"
		      "/sys/class. To run one program with them: softdev present PROGRAM\n\n"
		      "Example:\n  softdev tree /tmp/tree && cat /tmp/tree/sys/class/infiniband/soft0/ports/1/gids/0\n",
		      asked ? stdout : stderr);
		return asked ? 0 : 2;
	}
	umask(022);
	folder(argv[1]);
	if (!realpath(argv[1], root))
		fail("cannot find", argv[1]);
	open_library(&library);
	static const char *const folders[] = { "sys/class/infiniband", "sys/class/infiniband_verbs",
					       "sys/class/infiniband_mad", "sys/class/net", "dev/infiniband" };
	for (size_t n = 0; n < sizeof(folders) / sizeof(*folders); n++) {
		say(path, "%s/%s", root, folders[n]);
		folder(path);
	}
	say(path, "%s/sys/class/infiniband_verbs", root);
	line(path, "abi_version", "6");
	say(path, "%s/sys/class/infiniband_mad", root);
	line(path, "abi_version", "5");
	say(path, "%s/dev/infiniband", root);
	link_to("/dev/full", path, "rdma_cm");
	devices = library.get_device_list(&count);
	if (!devices)
		fail("there is no list of devices for", root);
	for (int n = 0; n < count; n++) {
		struct made made = { .library = &library, .root = root, .name = devices[n]->name };

		made.context = library.open_device(devices[n]);
		if (!made.context || !library.is_soft(made.context)) {
			if (made.context)
				library.close_device(made.context);
			continue;
		}
		/* Behind those of the kernel. */
		for (;; uverbs_number++) {
			say(path, "/sys/class/infiniband_verbs/uverbs%u", uverbs_number);
			if (access(path, F_OK))
				break;
		}
		made.uverbs = uverbs_number++;
		device(&made);
		library.close_device(made.context);
	}
	/* What the kernel has, behind what is the device's. */
	link_classes(root);
	say(path, "%s/dev/infiniband", root);
	link_entries("/dev/infiniband", path);
	return 0;
}
