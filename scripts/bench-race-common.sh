# Shared by bench-race.sh and bench-race-cost.sh, which source it.

. "$(dirname "$0")/bench-common.sh"

# watched COMMAND...: runs it on a fresh pool, and says so if it fails. Leaves its output in $files/output, its largest resident
# memory in KiB in $files/memory, and the time of its end in $ended.
watched() {
	rm -f "$pools"/*
	local process status=0
	"$@" >"$files/output" 2>&1 </dev/null &
	process=$!
	echo 0 >"$files/memory"
	while sleep 0.1; do
		awk '/^VmHWM/ { print $2 }' "/proc/$process/status" >"$files/now" 2>/dev/null || break
		[ ! -s "$files/now" ] || cp "$files/now" "$files/memory"
	done &
	wait "$process" || status=$?
	ended=$EPOCHREALTIME
	wait
	# Findings are no failure.
	if [ "$status" -gt 1 ]; then
		echo "$(basename "$0"): $* failed with $status: $(tail -n 5 "$files/output")" >&2
		return 1
	fi
}

# config_of PROGRAM: sets $config to the options for its pmvet.toml, if it has one.
config_of() {
	config=()
	[ ! -e "zoo/$1/pmvet.toml" ] || config=(--config "zoo/$1/pmvet.toml")
}
