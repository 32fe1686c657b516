#!/bin/sh
# Captures of a process that only receives: test_capture.sh TOOL PROGRAM. The program is captured.c.
set -eu
tool=$1 program=$2
here=$(mktemp -d)
trap 'rm -rf "$here"' EXIT
export XDG_RUNTIME_DIR="$here"

fail() {
	echo "test_capture.sh: $*" >&2
	exit 1
}
# has TEXT FILE
has() {
	grep -q -- "$1" "$2" || { cat "$2" >&2; fail "no \"$1\" in the output"; }
}
# packets CAPTURE FILE: one a line
packets() {
	tshark -r "$1" -T fields -e infiniband.bth.opcode -e infiniband.bth.destqp -e infiniband.aeth.syndrome -e frame.comment >"$2"
	tshark -r "$1" -Y '!infiniband || _ws.malformed || ip.checksum.status == 0' -o ip.check_checksum:TRUE >"$here/wrong"
	[ ! -s "$here/wrong" ] || { cat "$here/wrong" >&2; fail "not all are packets of RoCEv2"; }
}

"$tool" -o "$here/kept" "$program" >"$here/receiver" 2>"$here/err" || { cat "$here/err" >&2; fail "the program failed"; }
receiver=$(echo "$here/kept/$(cat "$here/receiver")"-*.rec)

# Both ends: each message is there once, and nothing has to be said.
"$tool" --pcapng "$here/kept" >"$here/both" 2>"$here/err"
[ ! -s "$here/err" ] || { cat "$here/err" >&2; fail "both ends are there, and something is missing"; }
"$tool" --pcapng "$receiver" >"$here/alone" 2>"$here/err"
has 'senders to 2 queue pairs are in none of these recordings' "$here/err"
has 'The senders to 2 queue pairs were not recorded' "$here/alone"

command -v tshark >/dev/null || exit 0
packets "$here/both" "$here/packets"
[ "$(grep -c 'bytes posted' "$here/packets")" = 7 ] || { cat "$here/packets" >&2; fail "not each message once"; }
grep 'receive of' "$here/packets" && fail "what was sent is there twice"
packets "$here/alone" "$here/packets"
to=$(awk '$1 == 4 { print $2; exit }' "$here/packets")
has "^4	$to		.*: SEND of 100 bytes completed the receive of wr_id 0x1" "$here/packets"
has "^0	$to		.*: SEND_WITH_IMM of 3000 bytes completed the receive of wr_id 0x2; the packets between" "$here/packets"
has "^3	$to		.*: SEND_WITH_IMM of 3000 bytes completed" "$here/packets"
has "^11	$to		.*: RDMA_WRITE_WITH_IMM of 50 bytes completed the receive of wr_id 0x3" "$here/packets"
has "^4	$to		.*: the receive of wr_id 0x4 failed, LOC_LEN_ERR" "$here/packets"
has '^17	.*	31	.*: what answers the message that completed the receive of wr_id 0x2' "$here/packets"
has '^17	.*	97	.*: what answers the message that completed the receive of wr_id 0x4' "$here/packets"
has '^100	.*: SEND of 100 bytes completed the receive of wr_id 0x5' "$here/packets"
[ "$(grep -c . "$here/packets")" = 10 ] || { cat "$here/packets" >&2; fail "not only what has completed receives"; }
# To the receiver, and its answers to the sender: by the addresses of both ends.
[ "$(tshark -r "$here/alone" -T fields -e infiniband.bth.destqp | sort -u | grep -c .)" = 3 ] || fail "answers go elsewhere"
