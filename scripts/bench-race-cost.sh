#!/usr/bin/env bash
# Measures the processor time and memory of `pmvet race` with 8 threads, and compares them with a native run and with the limits: 10 times
# native plus 2 s, and 512 MiB, or 1 GiB with --confirm. `make bench` builds what this needs. It only prints.
#
#   REAL=DIR  the folder with bin/ and workloads/ of TurboHash, P-ART and clevel hashing (docs/race-real-programs.md). Without it
#             programs of the zoo stand in for them.

. "$(dirname "$0")/bench-race-common.sh"
export PMEM_IS_PMEM_FORCE=1
root=$PWD
TIMEFORMAT='%U %S'

# cpu COMMAND...: its processor time, children included.
cpu() {
	{ time watched "$@"; } 2>"$files/time" || { cat "$files/time" >&2 && exit 1; }
	tail -n 1 "$files/time" | awk '{ printf "%.3f\n", $1 + $2 }'
}

# row NAME COMMAND...
row() {
	local name=$1 native race memory
	shift
	native=$(for _ in 1 2 3; do cpu "$@"; done | sort -n | sed -n 2p)
	race=$(cpu "$pmvet" race --runs "$files/runs" "${config[@]}" -- "$@")
	memory=$(cat "$files/memory")
	cpu "$pmvet" race --confirm --budget 20s --runs "$files/runs" "${config[@]}" -- "$@" >/dev/null
	awk -v p="$name" -v n="$native" -v r="$race" -v m="$memory" -v c="$(cat "$files/memory")" 'BEGIN {
		printf "  %-16s %8.2f s %8.2f s %8.2f s %7d MiB %7d MiB\n", p, n, r, 10 * n + 2, m / 1024, c / 1024
	}'
	rm -rf "$files/runs"
}

echo
echo "race, 8 threads: processor time, and memory without and with --confirm"
printf '  %-16s %10s %10s %10s %11s %11s\n' program native race limit memory "--confirm"
config=()
if [ -n "${REAL:-}" ]; then
	cd "$REAL"
	row turbohash bin/turbohash-O1 -p "$pools/pool" -i workloads/ycsb_1000.txt -t 8
	row p-art bin/p-art-O1 -p "$pools/pool" -s 256 -i workloads/ycsb_1000.txt -t 8
	row clevel bin/clevel "$pools/pool" workloads/load_1000.txt workloads/run_1000.txt 8
else
	for program in cl_hash bptree slab_kv; do
		config_of "$program"
		row "$program" "target/zoo/$program/clean" "$pools/pool" -n 1000 -t 8
	done
	config=()
fi
cc -O2 -pthread -o "$files/spin_lock" "$root/scripts/spin_lock.c"
row "spin lock" "$files/spin_lock" "$pools/pool" 8 2000
