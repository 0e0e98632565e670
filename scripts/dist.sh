#!/bin/sh
# Packs a built pmvet into target/dist. `make dist` and `make deb` build it first.
#
#   dist.sh tar    a tarball that runs from any folder
#   dist.sh deb    a Debian package

set -eu

cd "$(dirname "$0")/.."
out=target/dist
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1)
root=$(mktemp -d "${TMPDIR:-/tmp}/pmvet-dist.XXXXXX")
trap 'rm -rf "$root"' EXIT
trap 'exit 130' INT TERM HUP
# Files in packages are readable by everybody, whoever builds them.
umask 022
chmod 755 "$root"
mkdir -p "$out"
# The same input gives the same bytes.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || date +%s)}
export SOURCE_DATE_EPOCH

tarball() {
	name=pmvet-$version-x86_64-linux
	PREFIX=/$name DESTDIR=$root scripts/install.sh
	tar --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" -C "$root" -cJf "$out/$name.tar.xz" "$name"
	echo "$out/$name.tar.xz"
}

# The packages with the libraries that the programs link, in the versions whose symbols they use. DynamoRIO itself is included.
dependencies() {
	printf 'Source: pmvet\n\nPackage: pmvet\nArchitecture: amd64\n' >"$root/debian/control"
	(cd "$root" && dpkg-shlibdeps -O -ldebian/pmvet/usr/lib/pmvet \
		-edebian/pmvet/usr/bin/pmvet -edebian/pmvet/usr/lib/pmvet/libpmvet_client.so) | sed -n 's/^shlibs:Depends=//p'
}

package() {
	tree=$root/debian/pmvet
	mkdir -p "$tree"
	PREFIX=/usr DESTDIR=$tree ZSHDIR=share/zsh/vendor-completions scripts/install.sh
	doc=$tree/usr/share/doc/pmvet
	depends=$(dependencies)
	if [ -z "$depends" ]; then
		echo "dist.sh: dpkg-shlibdeps names no packages; is dpkg-dev installed?" >&2
		exit 1
	fi
	gzip -9n "$tree"/usr/share/man/man1/*.1
	# One file with all licences is what Debian asks for.
	{
		echo "pmvet may be used under the Apache License 2.0 or the MIT License, at your choice."
		echo "lib/pmvet/libdynamorio.so is DynamoRIO, whose licence is the last of the three texts."
		for licence in LICENSE-APACHE LICENSE-MIT LICENSE-DynamoRIO; do
			printf '\n---- %s\n\n' "$licence"
			cat "$doc/$licence"
			rm "$doc/$licence"
		done
	} >"$doc/copyright"
	gzip -9nc CHANGELOG.md >"$doc/changelog.gz"
	mkdir "$tree/DEBIAN"
	cat >"$tree/DEBIAN/control" <<-END
		Package: pmvet
		Version: $version
		Section: devel
		Priority: optional
		Architecture: amd64
		Maintainer: The pmvet authors <pmvet@localhost>
		Depends: $depends
		Suggests: gdb, libc6-dbg
		Installed-Size: $(du -sk --apparent-size "$tree/usr" | cut -f1)
		Description: finds bugs in programs that use persistent memory
		 pmvet runs an unmodified program, records what it does to persistent memory,
		 and finds out whether its data survives a crash at any point, whether threads
		 act on data that a crash may take back, and which flushes are not needed.
		 .
		 It contains DynamoRIO.
	END
	(cd "$tree" && find usr -type f | LC_ALL=C sort | xargs -d '\n' md5sum >DEBIAN/md5sums)
	dpkg-deb --root-owner-group -Zxz --build "$tree" "$out/pmvet_${version}_amd64.deb" >/dev/null
	echo "$out/pmvet_${version}_amd64.deb"
}

case ${1:-} in
tar) tarball ;;
deb) package ;;
*)
	echo "usage: dist.sh tar|deb" >&2
	exit 2
	;;
esac
