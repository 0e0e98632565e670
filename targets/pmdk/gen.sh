#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# gen.sh NAME N -- prints a deterministic input for the workloads.
#
#   mapcli-mixed N    print all, then N operations: insert, check and remove, a third each
#   mapcli-insert N   N inserts of scattered keys, then print all
#   art-fill N        N keys and values, a line each, with shared prefixes
#   kv-mixed N        N requests to the server: insert, get and remove, then stop it
#   kv-insert N       N requests to the server: insert and get, then stop it
#   invaders N        N keys pressed in the game, then quit
#   text N            N bytes of text

set -eu
LC_ALL=C
export LC_ALL

if [ $# -ne 2 ]; then
	sed -n 's/^# \{0,1\}//; 4,12p' "$0" >&2
	exit 2
fi

exec awk -v name="$1" -v n="$2" '
# A multiplicative generator that stays exact in double arithmetic everywhere.
function rnd() { seed = (seed * 16807) % 2147483647; return seed }
function below(m) { return rnd() % m }

# Early operations mostly insert and late ones mostly remove: a third each over
# the run, and the structure grows to n/6 keys and shrinks again. Inserts take
# an absent key and removes a present one, so that each one really changes it.
function next_op(i,    r) {
	r = rnd() / 2147483647
	if (r < 1 / 3)
		return "get"
	if (r < 1 / 3 + 2 / 3 * (1 - i / n))
		return "insert"
	return live > 0 ? "remove" : "get"
}
function absent(    k) {
	do k = 1 + below(keys); while (k in at)
	at[k] = live
	key[live++] = k
	return k
}
function present(    i, k) {
	i = below(live)
	k = key[i]
	key[i] = key[--live]
	at[key[i]] = i
	delete at[k]
	return k
}
function mixed(insert, get, remove, value,    i, op, k) {
	keys = n + 1
	live = 0
	for (i = 0; i < n; i++) {
		op = next_op(i)
		if (op == "insert") {
			k = absent()
			print insert k (value == "" ? "" : value k * 7)
		} else if (op == "remove")
			print remove present()
		else
			print get (live > 0 && below(4) > 0 ? key[below(live)] : 1 + below(keys))
	}
}
function digit(v) { return substr(digits, 1 + int(v) % 60, 1) }

BEGIN {
	seed = 20240229
	if (name == "mapcli-mixed") {
		# On a crash image this walks all that recovery left.
		print "p"
		mixed("i ", "c ", "r ", "")
	} else if (name == "mapcli-insert") {
		for (i = 0; i < n; i++)
			print "i " rnd()
		print "p"
	} else if (name == "art-fill") {
		# Descending, because arttree fails an assertion of its own when the
		# fourth child of a node is its last.
		digits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwx"
		for (i = n - 1; i >= 0; i--)
			printf "k%s%s%s%s\nvalue-%d\n", digit(i / 3600), digit(i / 60), digit(i),
				i % 3 == 0 ? "-and-a-tail" : "", rnd()
	} else if (name == "kv-insert") {
		for (i = 0; i < n; i++)
			print (i % 2 ? "GET key" : "INSERT key") below(n) (i % 2 ? "" : " value" i)
		print "KILL"
	} else if (name == "kv-mixed") {
		mixed("INSERT key", "GET key", "REMOVE key", " value")
		print "KILL"
	} else if (name == "invaders") {
		for (i = 0; i < n; i++)
			printf "%s", substr("op ", 1 + below(3), 1)
		printf "q"
	} else if (name == "text") {
		for (i = 0; i < n; i++)
			printf "%s", i % 64 == 63 ? "\n" : sprintf("%c", 97 + below(26))
	} else {
		print "gen.sh: no generator " name > "/dev/stderr"
		exit 2
	}
}'
