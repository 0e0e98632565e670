#!/usr/bin/env bash
# Measures `pmvet race` as the workload grows: 8 threads, as in HawkSet's evaluation, on structures of the zoo. Prints the wall time of the
# whole command, that of a native run, the limit (8 times native plus 2 s), and the largest resident memory of pmvet itself. `make bench`
# builds what this needs. It only prints.
#
#   PROGRAMS=...  which programs (default cl_hash bptree slab_kv)
#   OPS=...       how many operations (default 1000 10000 100000)

. "$(dirname "$0")/bench-race-common.sh"

# elapsed COMMAND...: its wall time.
elapsed() {
	local start=$EPOCHREALTIME
	watched "$@"
	awk -v a="$start" -v b="$ended" 'BEGIN { printf "%.3f\n", b - a }'
}

echo
echo "race, 8 threads"
printf '  %-10s %10s %9s %9s %9s %9s %12s\n' program operations native race limit memory "events/s"
for program in ${PROGRAMS:-cl_hash bptree slab_kv}; do
	config_of "$program"
	for ops in ${OPS:-1000 10000 100000}; do
		command=("target/zoo/$program/clean" "$pools/pool" -n "$ops" -t 8)
		native=$(for _ in 1 2 3; do elapsed "${command[@]}"; done | sort -n | sed -n 2p)
		race=$(elapsed "$pmvet" race --runs "$files/runs" "${config[@]}" -- "${command[@]}")
		events=$(sed -n 's/^covered: \([0-9]*\) events.*/\1/p' "$files/output")
		awk -v p="$program" -v o="$ops" -v n="$native" -v r="$race" -v m="$(cat "$files/memory")" -v e="${events:-0}" 'BEGIN {
			printf "  %-10s %10d %7.2f s %7.2f s %7.2f s %5d MiB %12d\n", p, o, n, r, 8 * n + 2, m / 1024, e / r
		}'
		rm -rf "$files/runs"
	done
done
