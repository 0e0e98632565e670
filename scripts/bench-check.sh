#!/usr/bin/env bash
# Compares the time of `pmvet check` with the least time that its work can take: one native run, and one native recovery for each different
# crash image, shared among the cores. Also compares it with a checker that copies each image to a file first. `make bench` builds what this
# needs. It only prints.
#
#   OPS=N     operations of the workload, a third each insert, get, remove (default 150000, as in Mumak's evaluation)
#   SAMPLE=N  failure points to try (default all)
#   MAPS=...  which maps (default btree rbtree hashmap_atomic)

. "$(dirname "$0")/bench-common.sh"
ops=${OPS:-150000}
export PMEM_IS_PMEM_FORCE=1

now() { echo "$EPOCHREALTIME"; }
stat_of() { sed -n "s/^ *\"$1\": *\([0-9.]*\),*$/\1/p" "$files/runs/latest/stats.json"; }

sh targets/pmdk/gen.sh mapcli-mixed "$ops" >"$files/stdin"
echo
echo "check of mapcli, $ops operations, -j2"
printf '  %-16s %9s %9s %8s %8s %10s %9s %11s %11s\n' \
	map native traced points images recovery wall efficiency "with copies"
for map in ${MAPS:-btree rbtree hashmap_atomic}; do
	rm -rf "$files/runs" "$pools/pool"
	command=("$PWD/target/pmdk/mapcli" "$map" "$pools/pool" 42)
	status=0
	"$pmvet" check --quiet -j2 ${SAMPLE:+--sample "$SAMPLE"} --crash-recoveries 0 --runs "$files/runs" -- \
		"${command[@]}" <"$files/stdin" >"$files/output" 2>&1 || status=$?
	case $status in
	0 | 1) ;;
	*)
		echo "bench-check.sh: check failed with $status: $(tail -n 5 "$files/output")" >&2
		exit 1
		;;
	esac
	# A recovery without pmvet, on a file: a copy of what the run leaves, made each time, as a checker without a sandbox must.
	rm -f "$pools/pool"
	"${command[@]}" <"$files/stdin" >/dev/null 2>&1
	cp --sparse=always "$pools/pool" "$files/image"
	recoveries=5
	native=0 copied=0
	for ((i = 0; i < recoveries; i++)); do
		a=$(now)
		cp --sparse=always "$files/image" "$pools/pool"
		b=$(now)
		"${command[@]}" <"$files/stdin" >/dev/null 2>&1
		c=$(now)
		native=$(awk -v s="$native" -v b="$b" -v c="$c" 'BEGIN { print s + c - b }')
		copied=$(awk -v s="$copied" -v a="$a" -v c="$c" 'BEGIN { print s + c - a }')
	done
	awk -v map="$map" -v n="$(stat_of native_seconds)" -v t="$(stat_of traced_seconds)" \
		-v p="$(stat_of failure_points)" -v i="$(stat_of recoveries)" -v m="$(stat_of mean_recovery_seconds)" \
		-v w="$(stat_of wall_seconds)" -v e="$(stat_of efficiency)" -v r="$(awk -v s="$native" -v k="$recoveries" 'BEGIN { print s / k }')" \
		-v c="$(awk -v s="$copied" -v k="$recoveries" 'BEGIN { print s / k }')" 'BEGIN {
		base = n + t + i * c / 2
		printf "  %-16s %7.2f s %7.2f s %8d %8d %8.1f ms %7.1f s %11.2f %11.2f\n", map, n, t, p, i, m * 1000, w, e, (n + i * r / 2) / base
	}'
done
