#!/bin/sh
# What `pmvet fuzz` reaches in T seconds (default 600) on one core: PMDK's mapcli with each of its maps, from one seed.
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
time=${T:-600}
place=$(mktemp -d /dev/shm/pmvet-bench-fuzz.XXXXXX)
trap 'rm -rf "$place"' EXIT INT TERM

printf 'i 1\ni 2\nr 1\nc 2\n' > "$place/seed"
printf '%-16s %8s %8s %10s %9s %8s\n' map runs/s cases 'PM paths' images stable
for map in ctree btree rtree rbtree hashmap_atomic hashmap_tx hashmap_rp skiplist; do
	# Its last line has the numbers; findings are another matter.
	(cd "$place" && "$root/target/release/pmvet" fuzz --seeds seed --corpus "$map" --budget "${time}s" \
		-- "$root/target/pmdk/mapcli" "$map" "$place/pool" 17 2> log > /dev/null) || [ $? -eq 1 ]
	grep 'PM paths' "$place/log" | tail -n 1 | sed -E \
		's/.* runs \(([0-9]+)\/s\), ([0-9]+) test cases, ([0-9]+) PM paths, ([0-9]+) images .*\), ([0-9.]+) % stable.*/\1 \2 \3 \4 \5/' |
		while read -r runs cases paths images stable; do
			printf '%-16s %8s %8s %10s %9s %7s%%\n' "$map" "$runs" "$cases" "$paths" "$images" "$stable"
		done
done
