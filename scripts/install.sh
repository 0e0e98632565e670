#!/bin/sh
# Copies a built pmvet to its place. `make install` builds it first.
#
#   BUILD     where cargo put it (default: target/release)
#   PREFIX    where it goes (default: /usr/local); may be moved as a whole later
#   DESTDIR   put in front of PREFIX, for packagers
#   ZSHDIR    where zsh looks for completions, below PREFIX (default: share/zsh/site-functions)

set -eu

cd "$(dirname "$0")/.."
build=${BUILD:-target/release}
prefix=${DESTDIR:-}${PREFIX:-/usr/local}

dynamorio=$build/dynamorio/lib64/release/libdynamorio.so
for file in "$build/pmvet" "$build/libpmvet_client.so" "$dynamorio"; do
	if [ ! -f "$file" ]; then
		echo "install.sh: no $file; run: cargo build --release" >&2
		exit 1
	fi
done
# DynamoRIO's licence lies beside the source it was built from.
source=$(sed -n 's/^CMAKE_HOME_DIRECTORY:INTERNAL=//p' "${dynamorio%/lib64/*}/CMakeCache.txt")
licence=$source/License.txt
if [ ! -f "$licence" ]; then
	echo "install.sh: DynamoRIO's licence was not found at $licence" >&2
	exit 1
fi

lib=$prefix/lib/pmvet
doc=$prefix/share/doc/pmvet
install -d "$prefix/bin" "$lib" "$prefix/include" "$doc"
install -m 755 "$build/pmvet" "$prefix/bin/pmvet"
install -m 755 "$build/libpmvet_client.so" "$dynamorio" "$lib/"
# DynamoRIO reads its own library, so that one is not stripped.
strip --strip-debug "$prefix/bin/pmvet" "$lib/libpmvet_client.so"
install -m 644 include/pmvet.h "$prefix/include/"
install -m 644 LICENSE-MIT LICENSE-APACHE "$doc/"
install -m 644 "$licence" "$doc/LICENSE-DynamoRIO"
# Help texts and proposed files name these pages.
install -d "$doc/docs"
install -m 644 docs/*.md "$doc/docs/"

# Manual pages and completions are made from the definition of the command line, so they cannot be out of date.
made=$(mktemp -d "${TMPDIR:-/tmp}/pmvet-install.XXXXXX")
trap 'rm -rf "$made"' EXIT
trap 'exit 130' INT TERM HUP
"$build/pmvet" generate man "$made/man"
"$build/pmvet" generate completions "$made/completions"
man=$prefix/share/man/man1
bash=$prefix/share/bash-completion/completions
zsh=$prefix/${ZSHDIR:-share/zsh/site-functions}
fish=$prefix/share/fish/vendor_completions.d
install -d "$man" "$bash" "$zsh" "$fish"
install -m 644 "$made"/man/*.1 "$man/"
install -m 644 "$made/completions/pmvet.bash" "$bash/pmvet"
install -m 644 "$made/completions/_pmvet" "$zsh/"
install -m 644 "$made/completions/pmvet.fish" "$fish/"
