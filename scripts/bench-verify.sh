#!/usr/bin/env bash
# Measures `pmvet verify`: executions of the recovery per second on one core, compared with the native recovery, and how the number of
# executions grows with the workload, compared with a search that tries all images. `make bench` builds what this needs. It only prints.
#
#   OPS="N .."  operations of the workloads (default "20 40 80"; the start of the fork server counts, a fifth of a second or so)

. "$(dirname "$0")/bench-common.sh"
export PMEM_IS_PMEM_FORCE=1

stat_of() { sed -n "s/^ *\"$1\": *\"*\([^\",]*\)\"*,*$/\1/p" "$files/runs/latest/stats.json"; }

# row NAME OPS RECOVERY -- COMMAND..., which reads the file `stdin`. The recovery is a line for the shell.
row() {
	local name=$1 ops=$2 recovery=$3 status=0
	shift 4
	rm -rf "$files/runs" "$pools/pool"
	"$pmvet" verify --quiet -j1 --runs "$files/runs" ${setup:+--setup "$setup"} --recover "$recovery" -- "$@" <"$files/stdin" >"$files/output" 2>&1 || status=$?
	if [ $status != 0 ]; then
		echo "bench-verify.sh: verify of $name ends with $status: $(tail -n 5 "$files/output")" >&2
	fi
	"$@" <"$files/stdin" >/dev/null 2>&1
	local start=$EPOCHREALTIME runs=20
	for ((i = 0; i < runs; i++)); do sh -c "exec $recovery" >/dev/null 2>&1; done
	awk -v name="$name" -v ops="$ops" -v points="$(stat_of failure_points)" -v e="$(stat_of executions)" \
		-v s="$(stat_of search_seconds)" -v eager="$(stat_of eager_executions)" \
		-v native="$(awk -v a="$start" -v b="$EPOCHREALTIME" -v n=$runs 'BEGIN { print (b - a) / n }')" 'BEGIN {
		printf "  %-14s %5d %7d %11d %8.1f/s %7.2f ms %7.2f ms   %s\n", name, ops, points, e, e / s, s / e * 1000, native * 1000, eager
	}'
}

echo
echo "verify, -j1: executions of the recovery, and the time of one beside a native run of it"
printf '  %-14s %5s %7s %11s %10s %10s %10s   %s\n' program ops points executions rate each native "eager executions"
: >"$files/stdin"
for program in plist atomic_hash redo_array; do
	for ops in ${OPS:-20 40 80}; do
		exe=$PWD/target/zoo/$program/clean
		row "$program" "$ops" "$exe $pools/pool -n 0" -- "$exe" "$pools/pool" -n "$ops"
	done
done
# The recovery opens the pool, which rolls back what a crash cut short, and prints all keys.
printf 'p\nq\n' >"$files/print"
for ops in ${OPS:-20 40 80}; do
	sh targets/pmdk/gen.sh mapcli-insert "$ops" >"$files/stdin"
	mapcli=$PWD/target/pmdk/mapcli
	# A crash while libpmemobj makes a pool leaves one that cannot be opened, which is not measured here.
	setup="$mapcli btree $pools/pool 42 <$files/print"
	row "mapcli btree" "$ops" "$mapcli btree $pools/pool 42 <$files/print" -- "$mapcli" btree "$pools/pool" 42
done
