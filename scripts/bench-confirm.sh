#!/usr/bin/env bash
# How long it takes to prove a concurrency bug with forced schedules and with random delays, after table 2 of the PMRace
# paper (ASPLOS 2022): the zoo's counterparts of its bugs, one core. `make bench-race` builds what this needs. It only prints.
#
#   CAP=SECONDS  how long one bug may take (default 600)

set -euo pipefail
export LC_ALL=C

cd "$(dirname "$0")/.."
pmvet=$PWD/target/release/pmvet
cap=${CAP:-600}
files=$(mktemp -d "${TMPDIR:-/tmp}/pmvet-bench.XXXXXX")
pools=$(mktemp -d /dev/shm/pmvet-bench.XXXXXX)
trap 'rm -rf "$files" "$pools"' EXIT
trap 'exit 130' INT TERM HUP

# The paper's bug, its type, the zoo's counterpart, its workload.
bugs='P-CLHT:1 Inter cl_hash 1 -n 1600 -t 16
P-CLHT:2 Sync cl_hash 6 -n 200 -t 4
CCEH:6 Sync ext_hash 6 -n 200 -t 4
FAST-FAIR:8 Inter bptree 1 -n 600 -t 4
memcached:9 Inter slab_kv 6 -n 400 -t 4
memcached:12 Inter slab_kv 3 -n 1600 -t 8
memcached:14 Inter slab_kv 4 -n 400 -t 4'

# Seconds until the bug is proven, or `-`. Arguments: options of pmvet, then the program.
prove() {
	local options=$1 program=$2 bug=$3 start status=0
	shift 3
	rm -rf "$files/runs" "$pools/pool"
	local config=()
	[ -e "zoo/$program/pmvet.toml" ] && config=(--config "zoo/$program/pmvet.toml")
	start=$EPOCHREALTIME
	# shellcheck disable=SC2086 # options are words
	timeout --foreground "$((cap * 2))" taskset -c 0 "$pmvet" race --confirm --quiet -j1 --budget "${cap}s" $options \
		"${config[@]}" --runs "$files/runs" -- "target/zoo/$program/bug-$bug" "$pools/pool" "$@" \
		</dev/null >"$files/output" 2>&1 || status=$?
	if [ "$status" = 1 ]; then
		awk -v a="$start" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.1f", b - a }'
	else
		printf -- -
	fi
}

printf '%-14s %-6s %-14s %12s %12s\n' bug type counterpart forced delays
while read -r bug type program number arguments; do
	# shellcheck disable=SC2086 # arguments are words
	forced=$(prove "" "$program" "$number" $arguments)
	# shellcheck disable=SC2086
	delays=$(prove "--delay-injection --rounds 1000" "$program" "$number" $arguments)
	printf '%-14s %-6s %-14s %12s %12s\n' "$bug" "$type" "$program $number" "$forced" "$delays"
done <<<"$bugs"
