#!/bin/sh
# Traces a small program of the zoo and shows the summary. `make demo` builds pmvet first.

set -eu

cd "$(dirname "$0")/.."
zoo=$PWD/target/zoo
make -s -C zoo OUT="$zoo" "$zoo/plist/clean" "$zoo/plist/bug-1"

# The pool goes to tmpfs, which counts as persistent memory here.
pools=$(mktemp -d /dev/shm/pmvet-demo.XXXXXX)
trap 'rm -rf "$pools"' EXIT
trap 'exit 130' INT TERM HUP

run() {
	echo
	echo "\$ $*"
	"$@"
}
echo "plist keeps a linked list in persistent memory. This build of it forgets one flush per insertion:"
run target/release/pmvet trace --check-image --top 5 -- target/zoo/plist/bug-1 "$pools/pool" -n 50
