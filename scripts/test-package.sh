#!/bin/sh
# Installs the packages in a bare Debian, checks that they find the demo's bug, removes them, and looks for files left behind.
# `make test-package` builds them first.
#
#   ROOT_TAR   a tarball of a bare Debian (default: target/dist/bookworm.tar, made with debootstrap and the network if it is missing)
#
# Needs root. Nothing outside temporary folders is changed.

set -eu

cd "$(dirname "$0")/.."
dist=$PWD/target/dist
root_tar=${ROOT_TAR:-$dist/bookworm.tar}
deb=$(ls "$dist"/pmvet_*_amd64.deb)
tarball=$(ls "$dist"/pmvet-*-x86_64-linux.tar.xz)
zoo=$PWD/target/zoo
work=$(mktemp -d "${TMPDIR:-/tmp}/pmvet-package.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM HUP

fail() {
	echo "test-package.sh: $*" >&2
	exit 1
}

[ "$(id -u)" = 0 ] || fail "a bare Debian needs root to be made and entered"
if [ ! -f "$root_tar" ]; then
	command -v debootstrap >/dev/null || fail "debootstrap is missing: apt-get install debootstrap"
	debootstrap --variant=minbase bookworm "$work/base" >"$work/debootstrap.log" 2>&1 ||
		fail "debootstrap: $(tail -n 1 "$work/debootstrap.log")"
	tar -C "$work/base" -cf "$root_tar.new" . && mv "$root_tar.new" "$root_tar"
	rm -rf "$work/base"
fi

# bare NAME: a fresh Debian in $work/NAME.
bare() {
	mkdir "$work/$1"
	tar -C "$work/$1" -xf "$root_tar"
	[ ! -e "$work/$1/usr/bin/cc" ] && [ ! -e "$work/$1/usr/bin/cargo" ] || fail "$root_tar is not bare: it has a compiler"
}

# inside NAME COMMAND: runs a shell command there, with its own processes, mounts and /dev/shm, as a container engine would.
inside() {
	unshare --mount --pid --fork --kill-child sh -eu -c '
		mount --make-rprivate /
		mount --bind "$1" "$1"
		mount -t proc none "$1/proc"
		mount -t tmpfs none "$1/dev"
		for name in null zero full random urandom tty; do
			touch "$1/dev/$name"
			mount --bind "/dev/$name" "$1/dev/$name"
		done
		mkdir "$1/dev/shm"
		mount -t tmpfs none "$1/dev/shm"
		mkdir -p "$1/.before"
		cd "$1"
		pivot_root . .before
		cd /
		umount -l /.before
		rmdir /.before
		exec env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 \
			DEBIAN_FRONTEND=noninteractive sh -eu -c "$2"
	' sh "$work/$1" "$2"
}

# files NAME: all files there, except the records of dpkg and apt.
files() {
	(cd "$work/$1" && find . -mindepth 1 \( -path ./var/lib/dpkg -o -path ./var/cache/apt -o -path ./var/lib/apt \) -prune -o \
		! -path './var/log/*' ! -path './demo*' -printf '%p %M %U:%G %l\n' | LC_ALL=C sort)
}

# The line at which the demo's bug is marked.
make -s -C zoo OUT="$zoo" "$zoo/undo_btree/bug-3"

# Does `pmvet` find the demo's bug? $1: how to call it.
demo() {
	cat <<-END
		mkdir -p /demo && cd /demo
		status=0
		$1 vet --budget 60s --color never -- /demo/program /dev/shm/pool -n 50 >found 2>said || status=\$?
		if [ \$status != 1 ] || ! grep -q '^error' found; then
			echo "exit code \$status:"; cat said found; exit 1
		fi
		grep '^error' found
	END
}
give_demo() {
	mkdir -p "$work/$1/demo"
	cp "$zoo/undo_btree/bug-3" "$work/$1/demo/program"
}

echo "== the package"
bare deb
give_demo deb
files deb >"$work/before"
cp "$deb" "$work/deb/demo/pmvet.deb"
start=$(date +%s)
inside deb 'dpkg -i /demo/pmvet.deb >/demo/dpkg.log && dpkg --verify pmvet && pmvet --version && pmvet doctor --color never'
inside deb "$(demo pmvet)"
echo "from the package to a finding: $(($(date +%s) - start)) s"
files deb >"$work/installed"
LC_ALL=C comm -13 "$work/before" "$work/installed" | sed 's/ .*//' | grep -v -e '^\./usr' && fail "files outside of /usr"
for page in pmvet pmvet-vet pmvet-check; do
	gzip -t "$work/deb/usr/share/man/man1/$page.1.gz"
done
bash -n "$work/deb/usr/share/bash-completion/completions/pmvet"
for licence in "Apache License" "MIT License" "DynamoRIO"; do
	grep -q "$licence" "$work/deb/usr/share/doc/pmvet/copyright" || fail "no $licence in the copyright file"
done

echo "== without the rights that views need"
inside deb "setpriv --bounding-set=-sys_admin --inh-caps=-sys_admin pmvet doctor --color never | grep 'private files' | grep -v FAIL"
inside deb "PMVET_SANDBOX=supervisor pmvet doctor --color never | grep 'private files' | grep -v FAIL"
inside deb "$(demo 'setpriv --bounding-set=-sys_admin --inh-caps=-sys_admin pmvet')"
inside deb "$(demo 'PMVET_SANDBOX=supervisor pmvet')"

echo "== removed"
inside deb 'dpkg --purge pmvet >/demo/dpkg.log'
files deb >"$work/after"
diff "$work/before" "$work/after" || fail "the package leaves something behind"
inside deb '! command -v pmvet && ! dpkg -s pmvet 2>/dev/null'
echo "nothing is left"

echo "== the tarball, from two places"
bare tar
give_demo tar
mkdir "$work/tar/demo/a b"
tar -C "$work/tar/demo/a b" --strip-components=1 -xf "$tarball"
inside tar "$(demo '"/demo/a b/bin/pmvet"')"
mv "$work/tar/demo/a b" "$work/tar/opt/elsewhere"
inside tar "ln -s /opt/elsewhere/bin/pmvet /usr/local/bin/pmvet"
inside tar "$(demo pmvet)"

echo "== the steps of the Containerfile"
bare container
give_demo container
sed -n 's/^COPY //p' Containerfile | while read -r from to; do
	# shellcheck disable=SC2086 # a glob
	cp $from "$work/container$to"
done
sed -n 's/^RUN //p' Containerfile >"$work/steps"
while read -r step; do
	inside container "$step" >"$work/step.log" 2>&1 </dev/null || fail "RUN $step: $(tail -n 3 "$work/step.log")"
done <"$work/steps"
[ -z "$(ls "$work/container/tmp")" ] || fail "the Containerfile leaves files in /tmp"
inside container "$(demo "$(sed -n 's/^ENTRYPOINT \["\(.*\)"\]$/\1/p' Containerfile)")"
echo "all is well"
