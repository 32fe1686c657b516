#!/bin/sh
# The command `softdev trace`: test_command.sh TOOL PROGRAM. The program is core_test_rc_errors, whose failures are known.
set -eu
tool=$1 program=$2
here=$(mktemp -d)
trap 'rm -rf "$here"' EXIT
export XDG_RUNTIME_DIR="$here"

fail() {
	echo "test_command.sh: $*" >&2
	exit 1
}
# has TEXT FILE
has() {
	grep -q -- "$1" "$2" || { cat "$2" >&2; fail "no \"$1\" in the output"; }
}

# The explanation is on standard error, and the status is the program's.
"$tool" "$program" receive_too_small >"$here/out" 2>"$here/err" || fail "the program failed"
has 'FAILED receive-too-small' "$here/err"
has 'receive_too_small (pid' "$here/err"
[ ! -s "$here/out" ] || fail "standard output is the program's"

# The last run, without a name.
"$tool" --explain >"$here/out"
has 'FAILED receive-too-small' "$here/out"
"$tool" --dump >"$here/out"
for word in 'device 0x' 'soft0' 'create_qp' 'modify_qp QP 0x.* to RTR' 'post_send QP 0x.* SEND wr_id=0x3 100 bytes' \
	'completion QP .*LOC_LEN_ERR'; do
	has "$word" "$here/out"
done
"$tool" --rates >"$here/out"
has '^  0x[0-9a-f]* RC ' "$here/out"
has 'doorbells/s' "$here/out"
"$tool" --metrics >"$here/out"
has '^softdev_process_info{pid="[0-9]*",program=".*receive_too_small",host=".*"} 1$' "$here/out"
has '^softdev_sends_total{pid="[0-9]*",device="soft0",qp="0x[0-9a-f]*",peer="[0-9a-f.:]*"} [1-9]' "$here/out"
has '^softdev_completion_errors_total{.*,status="REM_INV_REQ_ERR"} 1$' "$here/out"
has '^softdev_findings{pid="[0-9]*",name="receive-too-small",severity="failed"} [1-9]' "$here/out"
"$tool" --timeline >"$here/out"
has '"ph":"X".*"name":"SEND".*"status":"REM_INV_REQ_ERR"' "$here/out"
if command -v python3 >/dev/null; then
	python3 -m json.tool "$here/out" >/dev/null || fail "the timeline is no JSON"
fi
# For Wireshark: a SEND that was longer than the receive, and the peer's NAK.
"$tool" --pcapng >"$here/out"
if command -v tshark >/dev/null; then
	tshark -r "$here/out" -T fields -e infiniband.bth.opcode -e infiniband.aeth.syndrome -e frame.comment >"$here/packets"
	has '^4	.*: SEND of 100 bytes posted, wr_id 0x3' "$here/packets"
	has '^17	97	.*: completion of wr_id 0x[0-9a-f]* polled, REM_INV_REQ_ERR' "$here/packets"
	tshark -r "$here/out" -Y '!infiniband || _ws.malformed || ip.checksum.status == 0' -o ip.check_checksum:TRUE >"$here/packets"
	[ ! -s "$here/packets" ] || { cat "$here/packets" >&2; fail "not all are packets of RoCEv2"; }
fi

# A directory of one's own, a file, a process.
"$tool" -o "$here/kept" "$program" receive_too_small 2>/dev/null
file=$(echo "$here"/kept/*.rec)
[ -f "$file" ] || fail "-o keeps a recording"
[ "$(stat -c %a "$here/kept" "$file" | tr '\n' ' ')" = "700 600 " ] || fail "others may read recordings"
"$tool" --explain "$file" >"$here/out"
has 'FAILED receive-too-small' "$here/out"
pid=$(basename "$(echo "$here"/softdev-trace-*/*/*.rec)" .rec)
"$tool" --explain "${pid%-*}" >"$here/out"
has 'FAILED receive-too-small' "$here/out"
"$tool" --live "${pid%-*}" >"$here/out"
has 'doorbells/s' "$here/out"

# They do not pile up: a hundred runs are kept, the newest ones.
shelf=$(echo "$here"/softdev-trace-*)
for n in $(seq 100 219); do
	mkdir -m 700 "$shelf/$n.000000000-1"
	cp "$file" "$shelf/$n.000000000-1/"
done
"$tool" "$program" receive_too_small 2>/dev/null >&2
[ "$(ls "$shelf" | wc -l)" = 101 ] || { ls "$shelf" >&2; fail "not the last hundred runs are kept"; }
[ -e "$shelf/219.000000000-1" ] && [ ! -e "$shelf/100.000000000-1" ] || fail "the oldest ones are kept"

# What is wrong is said.
mkdir "$here/full"
if unshare -rm mount -t tmpfs tmpfs "$here/full" 2>/dev/null; then
	unshare -rm sh -euc 'mount -t tmpfs -o size=100k tmpfs "$1/full"
		"$2" -o "$1/full/kept" "$3" receive_too_small 2>"$1/err"
		find "$1/full/kept" -name "*.rec" >"$1/left"' sh "$here" "$tool" "$program" || fail "a full disk ends the program"
	has 'nothing is recorded.*No space left' "$here/err"
	[ ! -s "$here/left" ] || fail "a file that is no recording stays"
fi
head -c 3000 "$file" >"$here/short.rec"
if "$tool" --explain "$here/short.rec" >"$here/out" 2>"$here/err"; then fail "a file that is cut short was read"; fi
has 'cannot be read: ' "$here/err"
status=0
"$tool" /nonexistent 2>"$here/err" || status=$?
[ $status = 127 ] || fail "a program that is not there ends with $status"
status=0
"$tool" sh -c 'exit 7' 2>"$here/err" || status=$?
[ $status = 7 ] || fail "the status is $status, not the program's"
has 'nothing was recorded' "$here/err"
status=0
"$tool" 2>"$here/err" || status=$?
[ $status = 2 ] || fail "no program, and status $status"
