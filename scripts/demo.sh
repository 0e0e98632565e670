#!/bin/sh
# Checks a small program of the zoo that has a bug, and shows what pmvet finds. `make demo` builds pmvet first.

set -eu

cd "$(dirname "$0")/.."
pmvet=$PWD/target/release/pmvet
zoo=$PWD/target/zoo
make -s -C zoo OUT="$zoo" "$zoo/undo_btree/clean" "$zoo/undo_btree/bug-3"

# Runs are kept beside the working folder; the demo's are not worth keeping.
runs=$(mktemp -d "${TMPDIR:-/tmp}/pmvet-demo.XXXXXX")
trap 'rm -rf "$runs"' EXIT
trap 'exit 130' INT TERM HUP

# run STATUS COMMAND...: shows and runs the command, and fails if it ends with another status.
run() {
	expected=$1
	shift
	echo
	echo "\$ $*"
	status=0
	"$@" || status=$?
	if [ "$status" != "$expected" ]; then
		echo "demo.sh: exit code $status instead of $expected" >&2
		exit 1
	fi
}

echo "undo_btree keeps a B-tree in persistent memory, protected by an undo log. In this build a log entry counts before"
echo "it is written:"
run 1 "$pmvet" check --runs "$runs" -- "$zoo/undo_btree/bug-3" "$runs/pool" -n 50
echo
echo "The same crash again, from what the run has kept:"
run 1 "$pmvet" replay --runs "$runs" 1
echo
echo "And the program as it should be:"
run 0 "$pmvet" check --runs "$runs" -- "$zoo/undo_btree/clean" "$runs/pool" -n 50
