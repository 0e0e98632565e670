#!/bin/sh
# Compares `pmvet fuzz` with AFL++ and its compile-time instrumentation: PMDK's mapcli with each of its maps, T seconds each (default 600)
# on one core, from the same seed and the same pool. `pmvet fuzz --paths-of` counts what both reach: PM paths as PMFuzz counts them, which
# are test cases whose sequences of operations on PM differ, and the transitions between operations that they consist of. Last come the
# rates on a program of the zoo with a pool of one mebibyte.
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
pmvet=$root/target/release/pmvet
time=${T:-600}
maps=${MAPS:-ctree btree rtree rbtree hashmap_atomic hashmap_tx hashmap_rp skiplist}
place=$(mktemp -d /dev/shm/pmvet-bench-fuzz.XXXXXX)
trap 'rm -rf "$place"' EXIT INT TERM
cd "$place"
export PMEM_IS_PMEM_FORCE=1

# The program for AFL++: the same sources built with its compiler, and a fresh copy of the pool for each execution.
make -s -C "$root/targets/pmdk" OUT="$place/afl" CC=afl-clang-fast CFLAGS="-g -O2 $root/scripts/fresh_pool.c" \
	"$place/afl/mapcli" > /dev/null 2>&1
mkdir seeds
# One key at a time: mapcli's ctree does not survive two.
printf 'i 1\nc 1\nr 1\n' > seeds/seed

# Each function fuzzes a command line, and sets the rate that it reached.
afl() {
	FRESH_FROM=$place/pool FRESH_TO=$place/afl.pool AFL_NO_UI=1 AFL_SKIP_CPUFREQ=1 AFL_NO_AFFINITY=1 \
		AFL_I_DONT_CARE_ABOUT_MISSING_CRASHES=1 afl-fuzz -V "$time" -i seeds -o out -t 2000 -- "$@" \
		> afl.log 2>&1 || { tail -n 5 afl.log >&2; exit 1; }
	afl_rate=$(sed -nE 's/^execs_per_sec *: *([0-9.]+).*/\1/p' out/default/fuzzer_stats)
}
fuzz() {
	# Exit code 1 means findings, which is no failure.
	"$pmvet" fuzz --seeds seeds --corpus corpus --budget "${time}s" -- "$@" 2> log > /dev/null || [ $? -eq 1 ]
	rate=$(sed -nE 's@.*runs \(([0-9]+)/s.*@\1@p' log | tail -n 1)
}
# Prints PM paths and transitions, as two words.
reached() { sed -nE 's/.*: ([0-9]+) PM paths, ([0-9]+) transitions.*/\1 \2/p'; }
row() { printf '%-16s %9s %9s %9s %9s %7s %9s %9s %7s\n' "$@"; }
mean() { awk -v at="$1" '{ sum += log($at) } END { printf "%.2f", exp(sum / NR) }' factors; }

row '' 'runs/s' 'runs/s' 'PM paths' 'PM paths' '' 'transit.' 'transit.' ''
row map 'AFL++' 'pmvet' 'AFL++' 'pmvet' 'factor' 'AFL++' 'pmvet' 'factor'
: > factors
for map in $maps; do
	rm -rf pool start.pool corpus counted out
	"$root/target/pmdk/mapcli" "$map" "$place/start.pool" 17 < seeds/seed > /dev/null
	cp --sparse=always start.pool pool && rm start.pool

	afl afl/mapcli "$map" "$place/afl.pool" 17
	set -- -- "$root/target/pmdk/mapcli" "$map" "$place/pool" 17
	fuzz "$root/target/pmdk/mapcli" "$map" "$place/pool" 17
	afl_reached=$("$pmvet" fuzz --quiet --corpus counted --paths-of out/default/queue "$@" | reached)
	own_reached=$("$pmvet" fuzz --quiet --corpus corpus --paths-of corpus "$@" | reached)
	echo "$own_reached $afl_reached" | awk '{ printf "%.2f %.2f\n", $1 / $3, $2 / $4 }' >> factors
	set -- $afl_reached $own_reached $(tail -n 1 factors)
	row "$map" "$afl_rate" "$rate" "$1" "$3" "$5" "$2" "$4" "$6"
done
echo "geometric mean: $(mean 1) times the PM paths of AFL++, $(mean 2) times the transitions"

# A program of the zoo, with a pool of a mebibyte.
rm -rf pool corpus out
printf 'abcd' > seeds/seed
afl-clang-fast -g -O2 -pthread -mclwb -mclflushopt -I "$root/zoo/common" -o afl/tx_maps "$root/zoo/tx_maps/tx_maps.c" \
	"$root/scripts/fresh_pool.c" > /dev/null 2>&1
"$root/target/zoo/tx_maps/clean" "$place/pool" -i < seeds/seed > /dev/null
afl afl/tx_maps "$place/afl.pool" -i
fuzz "$root/target/zoo/tx_maps/clean" "$place/pool" -i
row 'zoo tx_maps' "$afl_rate" "$rate" '' '' '' '' '' ''
