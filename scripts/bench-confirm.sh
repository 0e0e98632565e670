#!/usr/bin/env bash
# How long it takes to prove a concurrency bug with forced schedules and with random delays, after table 2 of the PMRace
# paper (ASPLOS 2022): the zoo's counterparts of its bugs, one core. `make bench-race` builds what this needs. It only prints.
#
#   CAP=SECONDS  how long one bug may take (default 600)

. "$(dirname "$0")/bench-common.sh"
cap=${CAP:-600}

# Columns: the paper's bug, its type, the zoo's counterpart, how it shows, its workload. A bug shows as an error with a crash image; as a
# race that recovery copes with (the paper's "candidate"); or as a target that does not end.
bugs='P-CLHT:1 Inter cl_hash 1 error -n 1600 -t 16
P-CLHT:2 Sync cl_hash 6 error -n 200 -t 4
P-CLHT:3 Intra cl_hash 8 error -n 400 -t 4
P-CLHT:4 Other atomic_hash 19 race -n 400 -t 4
P-CLHT:5 Other cl_hash 15 hang -n 200 -t 4
CCEH:6 Sync ext_hash 6 error -n 200 -t 4
CCEH:7 Intra ext_hash 12 error -n 400 -t 4
FAST-FAIR:8 Inter bptree 1 error -n 600 -t 4
memcached:9 Inter slab_kv 6 error -n 400 -t 4
memcached:10 Inter pm_counter_map 13 error -n 400 -t 4
memcached:11 Inter slab_kv 1 error -n 400 -t 4
memcached:12 Inter slab_kv 3 error -n 1600 -t 8
memcached:13 Inter slab_kv 5 error -n 400 -t 4
memcached:14 Inter slab_kv 4 error -n 400 -t 4'

# Seconds until the bug shows, or `-`. Arguments: options of pmvet, how it shows, then the program.
prove() {
	local options=$1 shows=$2 program=$3 bug=$4 start status=0 found=false
	shift 4
	rm -rf "$files/runs" "$pools/pool"
	local config=() budget=$cap rounds=100000
	[ -e "zoo/$program/pmvet.toml" ] && config=(--config "zoo/$program/pmvet.toml")
	# A target that does not end shows by just that. A race that recovery copes with need not be proven.
	[ "$shows" = hang ] && budget=$((cap < 10 ? cap : 10))
	[ "$shows" = race ] && rounds=2
	start=$EPOCHREALTIME
	# shellcheck disable=SC2086 # options are words
	timeout --foreground "$((cap * 2))" taskset -c 0 "$pmvet" race --confirm --quiet --until-finding -j1 --budget "${budget}s" --rounds "$rounds" $options \
		"${config[@]}" --runs "$files/runs" -- "target/zoo/$program/bug-$bug" "$pools/pool" "$@" \
		</dev/null >"$files/output" 2>&1 || status=$?
	case $shows in
	error) [ "$status" = 1 ] && found=true ;;
	race) grep -q '^warning\[persistency-race\]' "$files/output" && found=true ;;
	hang) [ "$status" = 3 ] && found=true ;;
	esac
	if $found; then
		awk -v a="$start" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.1f", b - a }'
	else
		printf -- -
	fi
}

total() {
	awk -v a="$1" -v b="$2" -v cap="$cap" 'BEGIN { printf "%.1f", a + (b == "-" ? cap : b) }'
}

printf '%-14s %-6s %-18s %12s %12s\n' bug type counterpart forced delays
all_forced=0 all_delays=0
while read -r bug type program number shows arguments; do
	# shellcheck disable=SC2086 # arguments are words
	forced=$(prove "" "$shows" "$program" "$number" $arguments)
	# shellcheck disable=SC2086
	delays=$(prove --delay-injection "$shows" "$program" "$number" $arguments)
	printf '%-14s %-6s %-18s %12s %12s\n' "$bug" "$type" "$program $number" "$forced" "$delays"
	all_forced=$(total "$all_forced" "$forced") all_delays=$(total "$all_delays" "$delays")
done <<<"$bugs"
printf '%-14s %-6s %-18s %12s %12s\n' total "" "" "$all_forced" "$all_delays"
echo "Seconds until the bug shows, on one core; - if it does not within $cap s, which is what it counts with in the total."
