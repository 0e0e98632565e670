#!/bin/sh
# Installs missing packages on a Debian machine, and nothing else. If none is missing, it prints nothing and does not use the network.
#
#   scripts/setup.sh build    to build and run pmvet
#   scripts/setup.sh package  to make packages of it
#   scripts/setup.sh bare     and to try them in a bare Debian
#   scripts/setup.sh test     to build and test it
#   scripts/setup.sh fuzz     and to compare it with AFL++
#   scripts/setup.sh slurm    and to try array jobs
#
# As root or through sudo. Without those rights it prints what to install.

set -eu

goal=${1:-build}
missing=

# need PACKAGE TEST...: the package is missing if the test fails. Tests look for the program or file itself, wherever it came from.
need() {
	package=$1
	shift
	"$@" >/dev/null 2>&1 || missing="$missing $package"
}
command_of() { command -v "$1"; }
header() { [ -e "/usr/include/$1" ] || [ -e "/usr/include/$(uname -m)-linux-gnu/$1" ]; }
examples() { [ -d "/usr/share/doc/$1/examples" ]; }
pmdk() { header "$2" && examples "$1"; }

case $goal in
build | package | bare | test | fuzz | slurm) ;;
*)
	echo "usage: setup.sh build|package|bare|test|fuzz|slurm" >&2
	exit 2
	;;
esac

if ! command_of cargo >/dev/null; then
	echo "Rust is missing. Install it as https://rustup.rs says, then run this again." >&2
	exit 1
fi

need make command_of make
need cmake command_of cmake
need gcc command_of gcc
need g++ command_of g++
need libc6-dev header stdio.h
need perl command_of perl
if [ "$goal" = package ] || [ "$goal" = bare ]; then
	need dpkg-dev command_of dpkg-shlibdeps
	need xz-utils command_of xz
	[ "$goal" = package ] || need debootstrap command_of debootstrap
elif [ "$goal" != build ]; then
	need libpmem-dev pmdk libpmem-dev libpmem.h
	need libpmem2-dev pmdk libpmem2-dev libpmem2.h
	need libpmemobj-dev pmdk libpmemobj-dev libpmemobj.h
	need libpmemlog-dev header libpmemlog.h
	need libpmemblk-dev header libpmemblk.h
	need libuv1-dev header uv.h
	need libfuse-dev header fuse/fuse.h
	need libncurses-dev header ncurses.h
	need binutils command_of dwp
	need git command_of git
	need python3 command_of python3
	need xz-utils command_of xz
	# The HTML report is tested in a real browser, JUnit against its schema.
	need chromium command_of chromium
	need fonts-dejavu-core [ -d /usr/share/fonts/truetype/dejavu ]
	need libxml2-utils command_of xmllint
	# The documents' programs are mended with it.
	need patch command_of patch
	# The CI examples turn findings into annotations with it.
	need jq command_of jq
fi
if [ "$goal" = fuzz ]; then
	need afl++ command_of afl-clang-fast
	need clang command_of clang
fi
if [ "$goal" = slurm ]; then
	need slurmctld command_of slurmctld
	need slurmd command_of slurmd
	need slurm-client command_of sbatch
	need munge command_of munged
fi

if [ -n "$missing" ]; then
	packages=${missing# }
	if [ "$(id -u)" = 0 ]; then
		as_root=
	elif command_of sudo >/dev/null && { sudo -n true 2>/dev/null || { [ -t 0 ] && sudo -v; }; }; then
		as_root=sudo
	else
		as_root=none
	fi
	if [ "$as_root" = none ] || ! command_of apt-get >/dev/null; then
		echo "These packages (Debian's names) are missing:" >&2
		echo "    $packages" >&2
		echo "On Debian, install them as root with:" >&2
		echo "    apt-get update && apt-get install --no-install-recommends $packages" >&2
		exit 1
	fi
	echo "Installing: $packages" >&2
	# Continue: old package lists may suffice.
	$as_root apt-get -qq update || echo "The package lists could not be refreshed; trying those at hand." >&2
	# Slim images drop documentation, and with it the examples that serve as test programs. Hence the path, and --reinstall for a package that
	# is installed without them.
	# shellcheck disable=SC2086
	$as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq -y install --no-install-recommends --reinstall \
		-o Dpkg::Options::='--path-include=/usr/share/doc/libpmem*' $packages >&2
fi

# The formatter and the linter come with Rust, but not with its smallest profile.
if [ "$goal" = test ] || [ "$goal" = fuzz ] || [ "$goal" = slurm ]; then
	for component in fmt clippy; do
		cargo "$component" --version >/dev/null 2>&1 && continue
		[ "$component" = fmt ] && component=rustfmt
		if ! rustup component add "$component" >&2; then
			echo "Rust's $component is missing; install it with: rustup component add $component" >&2
			exit 1
		fi
	done
fi
