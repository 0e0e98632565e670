#!/usr/bin/env bash
# Measures the cost of private files: the same checks in views of the file system (namespaces), under the supervisor alone, and, if BEFORE
# names one, by another pmvet. They take turns, so that a busy host slows all of them. `make bench` builds what this needs. It only prints.
#
#   ROUNDS=N      how often each is run; the median counts (default 5)
#   BEFORE=PATH   another build of pmvet to compare with

. "$(dirname "$0")/bench-common.sh"
rounds=${ROUNDS:-5}
export PMEM_IS_PMEM_FORCE=1

sh targets/pmdk/gen.sh mapcli-mixed 300 >"$files/map"
: >"$files/none"

# once BACKEND INPUT OPTIONS... -- COMMAND...: the seconds that a check takes, and those of a mean recovery
once() {
	# Another build may try nothing but program order.
	local backend=$1 input=$2 program=$pmvet only=(--reorder-states 0) status=0
	shift 2
	if [ "$backend" = before ]; then program=$BEFORE only=(); fi
	case $backend in namespace | supervisor) export PMVET_SANDBOX=$backend ;; *) unset PMVET_SANDBOX ;; esac
	rm -rf "$files/runs" "$pools/pool"
	local from=$EPOCHREALTIME
	"$program" check --quiet -j2 --crash-recoveries 0 "${only[@]}" --runs "$files/runs" "$@" <"$input" >"$files/output" 2>&1 || status=$?
	local to=$EPOCHREALTIME
	[ "$status" -le 1 ] || { echo "bench-sandbox.sh: check failed with $status: $(tail -n 5 "$files/output")" >&2; exit 1; }
	local mean
	mean=$(sed -n 's/^ *"mean_recovery_seconds": *\([0-9.e-]*\),*$/\1/p' "$files/runs/latest/stats.json")
	awk -v a="$from" -v b="$to" -v m="$mean" 'BEGIN { printf "%.4f %.3f\n", b - a, m * 1000 }'
}

median() { sort -n | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'; }

backends=(namespace supervisor ${BEFORE:+before})
echo
echo "check in private views and under a supervisor, -j2, median of $rounds"
printf '  %-28s %-11s %9s %8s %12s\n' program files wall ratio "per recovery"
row() {
	local name=$1 i backend
	shift
	for backend in "${backends[@]}"; do : >"$files/$backend"; done
	for ((i = 0; i < rounds; i++)); do
		for backend in "${backends[@]}"; do once "$backend" "$@" >>"$files/$backend"; done
	done
	local base=
	for backend in "${backends[@]}"; do
		local wall mean
		wall=$(cut -d' ' -f1 "$files/$backend" | median)
		mean=$(cut -d' ' -f2 "$files/$backend" | median)
		base=${base:-$wall}
		awk -v n="$name" -v b="$backend" -v w="$wall" -v r="$base" -v m="$mean" \
			'BEGIN { printf "  %-28s %-11s %7.2f s %7.2f %9.2f ms\n", n, b, w, w / r, m }'
		name=
	done
}
row "mapcli btree, 300 ops" "$files/map" -- "$PWD/target/pmdk/mapcli" btree "$pools/pool" 42
row "undo_btree, 300 ops" "$files/none" -- "$PWD/target/zoo/undo_btree/clean" "$pools/pool" -n 300
# A recovery that names many files.
names='i=0; while [ $i -lt 300 ]; do [ -e "/tmp/none-$i" ]; i=$((i + 1)); done'
row "300 calls in each recovery" "$files/none" --recover "$names; exec $PWD/target/zoo/undo_btree/clean $pools/pool -n 0" -- \
	"$PWD/target/zoo/undo_btree/clean" "$pools/pool" -n 50
