#!/usr/bin/env bash
# What `pmvet race` costs as the workload grows: 8 threads, as in HawkSet's evaluation, on structures of the zoo. Wall time
# of the whole command beside that of a native run, the largest resident memory of pmvet itself, and what it was meant to
# stay below: 8 times native plus 2 s. `make bench` builds what this needs. It only prints.
#
#   PROGRAMS=...  which programs (default cl_hash bptree slab_kv)
#   OPS=...       how many operations (default 1000 10000 100000)

set -euo pipefail
export LC_ALL=C

cd "$(dirname "$0")/.."
pmvet=$PWD/target/release/pmvet
files=$(mktemp -d "${TMPDIR:-/tmp}/pmvet-bench.XXXXXX")
pools=$(mktemp -d /dev/shm/pmvet-bench.XXXXXX)
trap 'rm -rf "$files" "$pools"' EXIT
trap 'exit 130' INT TERM HUP

# elapsed COMMAND...: its wall time, on a fresh pool; its largest resident memory in KiB goes to $files/memory.
elapsed() {
	rm -f "$pools/pool"
	local start=$EPOCHREALTIME status=0 process end
	"$@" >"$files/output" 2>&1 </dev/null &
	process=$!
	echo 0 >"$files/memory"
	while sleep 0.1; do
		awk '/^VmHWM/ { print $2 }' "/proc/$process/status" >"$files/now" 2>/dev/null || break
		[ ! -s "$files/now" ] || cp "$files/now" "$files/memory"
	done &
	wait "$process" || status=$?
	end=$EPOCHREALTIME
	wait
	if [ "$status" -gt 1 ]; then
		echo "bench-race.sh: $* failed with $status: $(tail -n 5 "$files/output")" >&2
		exit 1
	fi
	awk -v a="$start" -v b="$end" 'BEGIN { printf "%.3f\n", b - a }'
}

echo
echo "race, 8 threads"
printf '  %-10s %10s %9s %9s %9s %9s %12s\n' program operations native race limit memory "events/s"
for program in ${PROGRAMS:-cl_hash bptree slab_kv}; do
	config=()
	[ -e "zoo/$program/pmvet.toml" ] && config=(--config "zoo/$program/pmvet.toml")
	for ops in ${OPS:-1000 10000 100000}; do
		command=("target/zoo/$program/clean" "$pools/pool" -n "$ops" -t 8)
		native=$(for _ in 1 2 3; do elapsed "${command[@]}"; done | sort -n | sed -n 2p)
		race=$(elapsed "$pmvet" race --runs "$files/runs" ${config[@]+"${config[@]}"} -- "${command[@]}")
		events=$(sed -n 's/^covered: \([0-9]*\) events.*/\1/p' "$files/output")
		awk -v p="$program" -v o="$ops" -v n="$native" -v r="$race" -v m="$(cat "$files/memory")" -v e="${events:-0}" 'BEGIN {
			printf "  %-10s %10d %7.2f s %7.2f s %7.2f s %5d MiB %12d\n", p, o, n, r, 8 * n + 2, m / 1024, e / r
		}'
		rm -rf "$files/runs"
	done
done
