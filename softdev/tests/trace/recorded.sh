#!/bin/sh
# A program under the recorder does what it does without, and its recordings can be read: recorded.sh TOOL PROGRAM.
set -eu
recordings=$(mktemp -d)
trap 'rm -rf "$recordings"' EXIT
"$1" -o "$recordings" "$2" 2>&1
"$1" --dump "$recordings" >/dev/null
"$1" --timeline "$recordings" >/dev/null
"$1" --pcapng "$recordings" >/dev/null
