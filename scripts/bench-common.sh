# Common start of the scripts of `make bench` and of race-table.sh, which source it. Sets $pmvet, and $files and $pools, two folders that
# are removed at the end.

set -euo pipefail
export LC_ALL=C

cd "$(dirname "$0")/.."
pmvet=$PWD/target/release/pmvet
files=$(mktemp -d "${TMPDIR:-/tmp}/pmvet-bench.XXXXXX")
pools=$(mktemp -d /dev/shm/pmvet-bench.XXXXXX)
trap 'rm -rf "$files" "$pools"' EXIT
trap 'exit 130' INT TERM HUP
