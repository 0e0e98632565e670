#!/bin/sh
# Makes crates/pmvet-client/src/dynamorio/bindings.rs: the parts of DynamoRIO that the client uses. Run it when the client uses more, or for
# a new version.
#
#   scripts/bindings.sh FOLDER    where DynamoRIO was built; FOLDER/include has its headers
#
# Needs bindgen (cargo install bindgen-cli --version 0.71.1) and libclang, which nothing else here needs.

set -eu

cd "$(dirname "$0")/../crates/pmvet-client/src"
folder=$1
made=dynamorio/bindings.rs

# Names in the client's sources that look like DynamoRIO's; bindgen ignores those that are not.
names=$(grep -rhoE --include='*.rs' --exclude=bindings.rs \
	'\b(_?dr|instr|instrlist|opnd|reg|decode|module|client)_[A-Za-z0-9_]+|\b(DR|OP|OPSZ)_[A-Za-z0-9_]+|\bapp_pc\b|\bour_stderr\b' . |
	LC_ALL=C sort -u | paste -sd '|')
header=$(mktemp "${TMPDIR:-/tmp}/pmvet-bindings.XXXXXX.h")
trap 'rm -f "$header"' EXIT
trap 'exit 130' INT TERM HUP
echo '#include <dr_api.h>' >"$header"

{
	echo '//! What the client uses of DynamoRIO, as its headers declare it. Made by `scripts/bindings.sh`; changes belong there.'
	echo
	echo '#![allow('
	echo '    dead_code, missing_debug_implementations, missing_docs, non_camel_case_types, non_snake_case, non_upper_case_globals,'
	echo '    unreachable_pub, clippy::all, clippy::pedantic, clippy::undocumented_unsafe_blocks,'
	echo '    reason = "made by a program, with the names that DynamoRIO has"'
	echo ')]'
	echo
	bindgen "$header" --use-core --rust-edition 2024 --rust-target 1.85 --no-doc-comments --disable-header-comment \
		--allowlist-item "$names" \
		--bitfield-enum 'dr_emit_flags_t|dr_mcontext_flags_t' \
		-- -DLINUX -DX86_64 -I"$folder/include" |
		# bindgen emits all values of an enumeration if one is used, and DynamoRIO knows 1,500 instructions.
		awk -v names="|$names|" '!/^pub const [^:]*: [^=]* = [0-9]+;$/ || index(names, "|" substr($3, 1, length($3) - 1) "|")'
} >"$made"
rustfmt --edition 2024 "$made"
