#!/bin/sh
# The recorder in a process that runs already: test_attach.sh TOOL PROGRAM. The program is attached.c.
set -eu
tool=$1 program=$2
here=$(mktemp -d)
pid=
trap '[ -z "$pid" ] || kill "$pid" 2>/dev/null || :; rm -rf "$here"' EXIT
export XDG_RUNTIME_DIR="$here"

fail() {
	echo "test_attach.sh: $*" >&2
	exit 1
}
# has TEXT FILE
has() {
	grep -q -- "$1" "$2" || { cat "$2" >&2; fail "no \"$1\" in the output"; }
}
# soon TEXT FILE: waits for it
soon() {
	until grep -q -- "$1" "$2" 2>/dev/null; do
		kill -0 "$3" 2>/dev/null || { cat "$2" >&2; fail "it ended without \"$1\""; }
		sleep 0.05
	done
}
# starts COMMAND...: the program, until it has begun to work
starts() {
	rm -f "$here/in" "$here/out" # which an earlier program may have left
	mkfifo "$here/in"
	"$@" <"$here/in" >"$here/out" 2>"$here/err" &
	pid=$!
	exec 3>"$here/in"
	soon ready "$here/out" "$pid"
}

starts "$program"
grep -q softdev-trace "/proc/$pid/maps" && fail "the recorder is there before it was asked for"
"$tool" -o "$here/kept" --attach "$pid" >"$here/explained" 2>"$here/said" &
attached=$!
soon 'is recorded until it ends' "$here/said" "$attached"
status=0
"$tool" --attach "$pid" >"$here/again" 2>&1 || status=$?
[ $status = 1 ] || fail "a second recorder was let in"
has 'the process is recorded already' "$here/again"
echo go >&3
exec 3>&-
wait "$pid" || { cat "$here/err" >&2; fail "the program failed under the recorder"; }
pid=
wait "$attached" || fail "the command failed"
# What came after, of old objects and of new ones.
has 'FAILED receive-too-small' "$here/explained"
has 'longer than the 99 bytes' "$here/explained"
has 'FAILED wrong-rkey' "$here/explained"
has 'it had done before is not known' "$here/explained"
has 'FAILED local-out-of-bounds' "$here/explained"
has 'FAILED wrong-lkey' "$here/explained"
has 'since the' "$here/explained" # the recording began
has 'The smallest receive on the' "$here/explained" # peer's
has 'flushed-by-program' "$here/explained"
for word in flushed-by-disconnect leaked no-receives not-rearmed unacked; do
	grep -q "$word" "$here/explained" && fail "\"$word\" is said of what was not seen"
done
"$tool" --dump "$here/kept" >"$here/dump"
has 'create_qp QP ' "$here/dump"
has 'modify_qp QP 0x[0-9a-f]* from INIT to RTR' "$here/dump"
has 'modify_qp QP 0x[0-9a-f]* .*as it was found' "$here/dump"
has 'reg_mr' "$here/dump"
has 'destroy_qp QP' "$here/dump"
has 'post_send QP 0x[0-9a-f]* RDMA_WRITE wr_id=0x49 100 bytes' "$here/dump"

# One that was recorded from its start, one that is not on the device, and what is no process.
starts "$tool" -o "$here/whole" "$program"
own=$(cat "/proc/$pid/task/$pid/children")
status=0
"$tool" --attach ${own% } >"$here/again" 2>&1 || status=$?
[ $status = 1 ] || fail "a second recorder was let in"
has 'the process is recorded already' "$here/again"
echo go >&3
exec 3>&-
wait "$pid" || fail "the program failed"
pid=
status=0
"$tool" --attach $$ 2>"$here/said" || status=$?
[ $status = 1 ] || fail "a shell has no recorder"
has 'none of yours that has opened the device' "$here/said"
for word in 0 -1 12x 99999999999; do
	status=0
	"$tool" --attach $word 2>"$here/said" || status=$?
	[ $status = 2 ] || fail "$word is no process"
done

# Every call that the recorder has is one that it can bind later.
if command -v nm >/dev/null; then
	nm -D --defined-only "$(dirname "$tool")/libsoftdev-trace.so" | awk '$2 == "T" && $3 ~ /^(ibv|rdma)_/ { print $3 }' |
		sort >"$here/exported"
	sed -n 's/^[[:space:]]CALL(\(.*\)),$/\1/p' "$(dirname "$0")/../../trace/recorder/attach.c" | sort >"$here/bound"
	[ -s "$here/exported" ] && cmp "$here/exported" "$here/bound" || fail "calls of the recorder are not in attach.c"
fi
