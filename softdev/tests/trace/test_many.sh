#!/bin/sh
# Many large recordings: test_many.sh TOOL PROGRAM. The program is core_test_rc_errors.
set -eu
tool=$1 program=$2
here=$(mktemp -d)
trap 'rm -rf "$here"' EXIT
export XDG_RUNTIME_DIR="$here"

fail() {
	echo "test_many.sh: $*" >&2
	exit 1
}
# has TEXT FILE
has() {
	grep -q -- "$1" "$2" || { cat "$2" >&2; fail "no \"$1\" in the output"; }
}
# patch FILE OFFSET: standard input over what is there
patch() {
	dd of="$1" bs=1 seek="$2" conv=notrunc 2>/dev/null
}

"$tool" "$program" receive_too_small 2>/dev/null
last=$(echo "$here"/softdev-trace-*/*)
file=$(echo "$last"/*.rec)
# The heads of 62 rings of threads that say that they are full, with records of no kind (record.h): all but those of the
# objects, by which peers are found. Each has another process number.
n=0
while [ $n -lt 62 ]; do
	printf '\000\100\000\000\000\000\000\000'
	head -c 56 /dev/zero
	n=$((n + 1))
done >"$here/heads"
for n in 1 2 3 4 5 6 7; do
	mkdir -m 700 "$here/softdev-trace-$(id -u)/1$n.000000000-1"
	large=$here/softdev-trace-$(id -u)/1$n.000000000-1/large.rec
	cp --sparse=always "$file" "$large"
	patch "$large" $((61440 + 2 * 64)) <"$here/heads"
	printf "\\00$n\\001\\000\\000" | patch "$large" 24
done

# Of a million records each, there is room for four; the small one that is shown is there in any case.
"$tool" --explain "$last" >"$here/out" 2>"$here/err"
has 'FAILED receive-too-small' "$here/out"
has '^softdev: 3 recordings of peers are left out' "$here/err"
# Those that are named.
mkdir "$here/all"
for n in 1 2 3 4 5 6 7; do
	ln "$here"/softdev-trace-*/1$n.000000000-1/large.rec "$here/all/$n.rec"
done
"$tool" --explain "$here/all" >"$here/out" 2>"$here/err"
[ "$(grep -c '^softdev: .*name it alone' "$here/err")" = 3 ] || { cat "$here/err" >&2; fail "not three are left out"; }
[ "$(grep -c 'core_test_rc_errors receive_too_small (pid' "$here/out")" = 4 ] || { cat "$here/out" >&2; fail "not four are shown"; }
# Alone, each is.
"$tool" --explain "$here/all/7.rec" >"$here/out" 2>"$here/err"
has 'receive_too_small (pid' "$here/out"
