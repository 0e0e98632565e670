#!/usr/bin/env bash
# Prints the table in docs/race.md: what `pmvet race` reports on the zoo, with all choices on and with one choice turned off. Each cell is
# the number of findings of one run. `make build zoo` builds what this needs.
#
#   scripts/race-table.sh [clean|bugs] [PROGRAM...]

. "$(dirname "$0")/bench-common.sh"

which=${1:-all}
shift || true
choices=(init-removal allocators infer-locks reader-window edges)

# findings PROGRAM VARIANT WORKLOAD OPTIONS...: how many findings one run gives.
findings() {
	local program=$1 variant=$2 workload=$3 folder config=()
	shift 3
	folder=zoo/$program
	[ -d "$folder" ] || folder=zoo/rust/$program
	[ -e "$folder/pmvet.toml" ] && config=(--config "$folder/pmvet.toml")
	rm -rf "$pools/pool" "$files/runs"
	# The workload is words without spaces.
	# shellcheck disable=SC2086
	"$pmvet" race --quiet --runs "$files/runs" ${config[@]+"${config[@]}"} "$@" -- \
		"target/zoo/$program/$variant" "$pools/pool" $workload >"$files/output" 2>&1 </dev/null ||
		{ cat "$files/output" >&2 && exit 1; }
	wc -l <"$files/runs/latest/findings.jsonl"
}

row() {
	printf '| %s %s |' "$1" "$2"
	printf ' %s |' "$(findings "$@")"
	for choice in "${choices[@]}"; do
		printf ' %s |' "$(findings "$@" --without "$choice")"
	done
	printf ' %s |\n' "$(findings "$@" --lock-free)"
}

printf '| variant | default |'
printf ' without %s |' "${choices[@]}"
printf ' `--lock-free` |\n|---|---|'
printf -- '---|%.0s' "${choices[@]}" lock-free
echo
for manifest in zoo/*/manifest.toml zoo/rust/*/manifest.toml; do
	program=$(basename "$(dirname "$manifest")")
	if [ $# -gt 0 ] && [[ " $* " != *" $program "* ]]; then continue; fi
	# One line for each bug of this engine: its number, then its workload.
	bugs=$(awk -F ' *= *' '
		/^\[\[bug\]\]/ { id = ""; wanted = 0 }
		$1 == "id" { id = $2 }
		$1 == "engines" { wanted = $2 ~ /"lockset"/ }
		$1 == "workload" && wanted { gsub(/[][",]/, " ", $2); print id, $2 }' "$manifest")
	[ -n "$bugs" ] || continue
	if [ "$which" != bugs ]; then row "$program" clean "$(head -n 1 <<<"$bugs" | cut -d' ' -f2-)"; fi
	if [ "$which" != clean ]; then
		while read -r id workload; do row "$program" "bug-$id" "$workload"; done <<<"$bugs"
	fi
done
