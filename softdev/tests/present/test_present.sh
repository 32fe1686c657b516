#!/bin/sh
# Programs that read /sys and /dev find the device there: test_present.sh CMAKE BUILD. What is checked is what programs
# that nobody here wrote print: coreutils, findutils, shells, Python, ibv_devinfo, and infiniband-diags where it is installed.
set -eu
here=$(mktemp -d)
trap 'rm -rf "$here"' EXIT
chmod 755 "$here"
"$1" --install "$2" --prefix "$here/installed" >/dev/null
export PATH="$here/installed/bin:$PATH:/usr/sbin:/sbin" XDG_RUNTIME_DIR="$here"
class=/sys/class/infiniband

fail() {
	echo "test_present.sh: $*" >&2
	exit 1
}
# says WANTED PROGRAM...: it prints that pattern, and ends well.
says() {
	wanted=$1
	shift
	"$@" >"$here/out" 2>&1 || { cat "$here/out" >&2; fail "$* ended with an error"; }
	grep -q -- "$wanted" "$here/out" || { cat "$here/out" >&2; fail "$*: no \"$wanted\""; }
}

# Help is on standard output, also of the words before which nothing else is done, and what is no word of theirs is refused.
mkdir "$here/empty"
cd "$here/empty"
for words in --help -h 'dir --help' 'dir -h' 'present --help' 'tree --help' 'fault --help' 'trace --help'; do
	softdev $words >"$here/out" 2>"$here/err" || fail "softdev $words ended with an error"
	grep -q '^usage: softdev ' "$here/out" && [ ! -s "$here/err" ] || fail "softdev $words gives no help"
done
for words in '' --no-such no-such 'dir --no-such' 'dir one two' present 'present --no-such' 'present --mount' \
	'present --mount --no-such' 'tree --no-such'; do
	status=0
	softdev $words >"$here/out" 2>"$here/err" || status=$?
	[ $status = 2 ] || fail "softdev $words ended with $status"
	grep -q '^usage: softdev ' "$here/err" && [ ! -s "$here/out" ] || fail "softdev $words does not say how it is used"
done
[ -z "$(ls -A)" ] || fail "something was made: $(ls -A)"
cd /

# The tree, with what the device itself answers.
softdev tree "$here/tree"
softdev tree "$here/tree" # again, over the one that is there
soft=$here/tree$class/soft0
says '^1: CA$' cat "$soft/node_type"
says '^4: ACTIVE$' cat "$soft/ports/1/state"
says '^5: LinkUp$' cat "$soft/ports/1/phys_state"
says '^Ethernet$' cat "$soft/ports/1/link_layer"
says '^100 Gb/sec (4X EDR)$' cat "$soft/ports/1/rate"
says '^0xffff$' cat "$soft/ports/1/pkeys/0"
says '^RoCE v2$' cat "$soft/ports/1/gid_attrs/types/0"
says '^0$' cat "$soft/ports/1/counters/port_xmit_data"
says '^[0-9]*$' cat "$soft/ports/1/hw_counters/out_of_sequence"
LD_PRELOAD=$(find "$here/installed" -name libsoftdev.so) ibv_devinfo -d soft0 >"$here/info" || fail "ibv_devinfo failed"
for word in fw_ver node_guid sys_image_guid; do
	says "$(awk -v word="$word:" '$1 == word { print $2 }' "$here/info")" cat "$soft/$word"
done
SOFTDEV_PERSONALITY=siw softdev tree "$here/iwarp"
says '^4: RNIC$' cat "$here/iwarp$class/soft0/node_type"
SOFTDEV_DEVICES=2 softdev tree "$here/two"
says '^soft1$' cat "$here/two/sys/class/infiniband_verbs/uverbs1/ibdev"
interface=$(cat "$soft/ports/1/gid_attrs/ndevs/0")
rdma=/sys/class/net/$interface/device/infiniband

# scans HOW: programs that look for a device.
scans() {
	says '^soft0$' softdev present $1 ls $class
	says '^uverbs0$' softdev present $1 ls /sys/class/infiniband_verbs
	says '^uverbs0$' softdev present $1 ls /dev/infiniband
	says '^softdev0$' softdev present $1 ls /dev/infiniband # as in ibv_device.dev_name: Mooncake looks for it
	says '^c' softdev present $1 ls -lL /dev/infiniband/rdma_cm
	says ' soft0 -> ' softdev present $1 ls -l "$rdma/"
	says '^1: CA$' softdev present $1 cat "$rdma/soft0/node_type"
	says "^$class/soft0\$" softdev present $1 readlink -f "$rdma/soft0"
	says "^$class/soft0/ports\$" softdev present $1 find $class/ -maxdepth 2
	says "^$class/soft0/ports/1\$" softdev present $1 sh -c "cd $class && cat */ports/1/state >/dev/null; echo $class/*/ports/*"
	# As ibdev2netdev pairs a device with its interface.
	says "^soft0 port 1 ==> $interface (.*)\$" softdev present $1 sh -c "for one in $class/*; do for port in \$one/ports/*; do
		name=\$(cat \$port/gid_attrs/ndevs/0); [ -d \$one/device/net/\$name ] || exit 1
		echo \${one##*/} port \${port##*/} '==>' \$name \"(\$(cat /sys/class/net/\$name/operstate))\"; done; done"
	# The others are the kernel's, as they are.
	says '^65536$' softdev present $1 cat /sys/class/net/lo/mtu
	says '^lo$' softdev present $1 ls /sys/class/net
	says 'soft0' softdev present $1 ibv_devices
	if command -v bash >/dev/null; then
		says '^here$' softdev present $1 bash -c "[[ -c /dev/infiniband/rdma_cm && -r $class/soft0/fw_ver && ! -e $class/soft9 ]] &&
			read -r state <$class/soft0/ports/1/state && [ \"\$state\" = '4: ACTIVE' ] && echo here"
	fi
	if command -v python3 >/dev/null; then
		says "^$class/soft0/device True\$" softdev present $1 python3 -c "import os, pathlib, stat
[entry] = [entry for entry in os.scandir('$class') if entry.name in os.listdir('$class') and entry.name == 'soft0']
assert entry.is_dir() and pathlib.Path(entry.path, 'fw_ver').read_text() == open(f'$class/soft0/fw_ver').read()
assert not os.path.exists('$class/soft0/ports/2') and os.access('$class/soft0/ports/1/gids/0', os.R_OK)
print(os.path.realpath('$rdma/soft0/device'), stat.S_ISCHR(os.stat('/dev/infiniband/uverbs0').st_mode))"
	fi
	if command -v ibstat >/dev/null && command -v ibstatus >/dev/null; then
		says "State: Active" softdev present $1 ibstat soft0 1
		says "^CA 'soft0'" softdev present $1 ibstat
		says "^Infiniband device 'soft0' port 1 status:" softdev present $1 ibstatus
	fi
}

scans ""
# The status and the process are the program's.
status=0
softdev present sh -c 'exit 7' || status=$?
[ $status = 7 ] || fail "the status is $status, not the program's"
# Two devices are seen as two.
says 'soft0 soft1' env SOFTDEV_DEVICES=2 softdev present sh -c "cd $class && echo *"
# Without a tree, nothing leads anywhere.
says "^none$" env LD_PRELOAD="$(find "$here/installed" -name libsoftdev-present.so)" SOFTDEV_TREE=/nonexistent \
	sh -c "[ ! -e $class/soft0 ] && [ -e /sys/class/net/lo ] && echo none"

# For programs that nothing can be preloaded into.
if unshare --user --map-root-user --mount mount --bind /tmp /tmp 2>/dev/null; then
	scans --mount
	says '^soft0$' softdev present --mount env -u LD_PRELOAD ls $class
	says "^$(id -u)\$" softdev present --mount id -u
	says '^null$' softdev present --mount ls /dev
else
	echo "test_present.sh: not mounted, as this user can make no user namespace"
fi
