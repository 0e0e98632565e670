#!/usr/bin/env bash
# Measures the cost of tracing, compared with native runs. Times are medians; native and traced runs alternate, so that a machine that gets
# slower or faster meanwhile affects both. `make bench` builds what this needs. It only prints.
#
#   RUNS=N    runs of each kind (default 5)

set -euo pipefail
export LC_ALL=C

cd "$(dirname "$0")/.."
runs=${RUNS:-5}
pmvet=target/release/pmvet
pools=$(mktemp -d /dev/shm/pmvet-bench.XXXXXX)
files=$(mktemp -d "${TMPDIR:-/tmp}/pmvet-bench.XXXXXX")
trap 'rm -rf "$pools" "$files"' EXIT
trap 'exit 130' INT TERM HUP

# pmvet sets it for the traced runs.
export PMEM_IS_PMEM_FORCE=1

# The kinds of runs, and the part of the command line before the program.
kinds=(native bare stores loads)
declare -A prefix=(
	[native]=""
	[bare]="$pmvet trace --quiet --bare --"
	[stores]="$pmvet trace --quiet --"
	[loads]="$pmvet trace --quiet --loads --"
)

fail() {
	echo "bench.sh: $*" >&2
	exit 1
}

# seconds_of COMMAND...: how long it takes, on a fresh pool.
seconds_of() {
	rm -f "$pools/pool"
	local start=$EPOCHREALTIME
	"$@" <"$files/stdin" >"$files/output" 2>&1 || fail "$* failed: $(tail -n 5 "$files/output")"
	awk -v a="$start" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.6f\n", b - a }'
}

median() { sort -n "$1" | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'; }

# peak_mib COMMAND...: the largest resident memory of the process itself, without its children. The kernel keeps the
# maximum; it is read until the process has gone.
peak_mib() {
	rm -f "$pools/pool"
	local process kib=0 now
	"$@" <"$files/stdin" >"$files/output" 2>&1 &
	process=$!
	while now=$(awk '/^VmHWM/ { print $2 }' "/proc/$process/status" 2>/dev/null) && [ -n "$now" ]; do
		kib=$now
		sleep 0.05
	done
	wait "$process" || fail "$* failed: $(tail -n 5 "$files/output")"
	echo $((kib / 1024))
}

row() { printf '  %-44s %12s %9s %9s\n' "$@"; }

# bench TITLE COMMAND...: {pool} is the pool.
bench() {
	local title=$1 kind round native seconds
	shift
	local command=("${@/\{pool\}/$pools/pool}")
	rm -f "$files"/times-*
	for ((round = 0; round < runs; round++)); do
		for kind in "${kinds[@]}"; do
			# shellcheck disable=SC2086
			seconds_of ${prefix[$kind]} "${command[@]}" >>"$files/times-$kind"
		done
	done
	native=$(median "$files/times-native")
	echo
	echo "$title"
	row "" "median of $runs" "ratio" "limit"
	for kind in "${kinds[@]}"; do
		local what limit=-
		case $kind in
		native) what="native" ;;
		bare) what="bare DynamoRIO" ;;
		stores) what="stores, flushes, fences" limit=2.5x ;;
		loads) what="loads as well" limit=5.0x ;;
		esac
		seconds=$(median "$files/times-$kind")
		row "$what" "$(printf '%.2f s' "$seconds")" \
			"$(awk -v a="$seconds" -v b="$native" 'BEGIN { printf "%.2fx", a / b }')" "$limit"
	done
	saved "" "${command[@]}"
	saved --loads "${command[@]}"
}

# saved OPTION COMMAND...: memory and the size of a saved trace.
saved() {
	local option=$1 with events bytes peak
	shift
	with=${option:+, with loads}
	# shellcheck disable=SC2086
	peak=$(peak_mib "$pmvet" trace $option --save-trace "$files/trace" --format json --summary "$files/summary" -- "$@")
	events=$(grep -o '"events":[0-9]*' "$files/summary" | head -n 1 | cut -d: -f2)
	bytes=$(stat -c %s "$files/trace")
	rm -f "$files/trace"
	row "peak memory of pmvet$with" "$peak MiB" "" "512 MiB"
	row "saved trace$with" \
		"$(awk -v b="$bytes" -v e="$events" 'BEGIN { printf "%.2f B/event", b / e }')" \
		"$(awk -v e="$events" 'BEGIN { printf "%.1f M", e / 1e6 }')" ""
}

echo "$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1), $(nproc) cores, load $(cut -d' ' -f1 /proc/loadavg)"
echo "n 400000" >"$files/stdin"
bench "mapcli btree, 400,000 keys inserted" "$PWD/target/pmdk/mapcli" btree "{pool}" 42
: >"$files/stdin"
bench "undo_btree with 4 threads, 500,000 operations" "$PWD/target/zoo/undo_btree/clean" "{pool}" -n 500000 -t 4
bench "cl_hash with 4 threads, 4,000,000 operations" "$PWD/target/zoo/cl_hash/clean" "{pool}" -n 4000000 -t 4
