# make help lists the goals.

CARGO ?= cargo
JOBS ?= $(shell nproc)
PREFIX ?= /usr/local
export PREFIX DESTDIR

TARGET := $(CURDIR)/target
# A script checks for the host's packages. If all are installed, nothing here uses the network.
SETUP := scripts/setup.sh

.PHONY: help demo test check tests test-units test-package test-slurm build lint zoo pmdk book soak bench bench-race bench-fuzz fuzz install dist deb
.DEFAULT_GOAL := help

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: ## build pmvet and check a small program that has a bug
	@$(SETUP) build
	@$(MAKE) --no-print-directory build
	@scripts/demo.sh

test: ## install what is missing, build everything, lint, run all tests
	@$(SETUP) test
	@$(MAKE) --no-print-directory check

# Tests run the programs in target/release, and cargo does not know that they need the client, so the build comes first. It builds all
# targets at once: without the tests, libraries would be built with fewer features, and then once more.
check:
	$(CARGO) build --release --workspace --all-targets
	@$(MAKE) --no-print-directory zoo pmdk
	@$(MAKE) --no-print-directory lint
	@$(MAKE) --no-print-directory --keep-going -j3 --output-sync=target tests
	@$(MAKE) --no-print-directory $(ALONE:%=test-%)

# Cargo runs one test file after the other, and most of them wait a lot: processes start and end, and the last of many jobs keeps one core
# busy. So three files run at a time, the longest first, and the output of each is printed as a whole. Tests that measure time, or run
# programs that take all resources, run alone afterwards.
export PMVET_REQUIRE_BROWSER = 1
export PMVET_REQUIRE_XMLLINT = 1
export INSTA_UPDATE = no
ALONE := vet stops
LONG := nothing_touched check_pmdk check_zoo durable_zoo durable_server durable_races durable_pmdk check_libpmemobj documents denied_calls check_races nothing_lost scatter transparency
# Test files that need the preparation of their own goal.
APART := slurm
REST := $(filter-out $(ALONE) $(LONG) $(APART),$(patsubst crates/pmvet/tests/%.rs,%,$(wildcard crates/pmvet/tests/*.rs)))
# Test files of the other crates. If two have the same name, both run at once.
OTHERS := $(filter-out $(REST),$(notdir $(basename $(filter-out crates/pmvet/%,$(wildcard crates/*/tests/*.rs) $(patsubst %/main.rs,%.rs,$(wildcard crates/*/tests/*/main.rs))))))

tests: $(LONG:%=test-%) test-units $(REST:%=test-%)

# Always the whole workspace: a single package has other features and would be built again. MAKEFLAGS is empty so that cargo, and the makes
# that tests run, do not share the jobs of this make.
test-units:
	MAKEFLAGS= $(CARGO) test --release --workspace --lib --bins $(OTHERS:%=--test %)
	MAKEFLAGS= $(CARGO) test --release --workspace --doc

# Without the LD_LIBRARY_PATH that cargo sets: the loader would look in cargo's folders, in vain, for each library of each of the many
# programs that tests start, and the sandbox handles each of these calls. It is a third of their time.
NO_LIBRARY_PATH := CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER="env -u LD_LIBRARY_PATH"

test-%:
	MAKEFLAGS= $(NO_LIBRARY_PATH) $(CARGO) test --release --workspace --test $*

build: ## build pmvet, the client and DynamoRIO
	$(CARGO) build --release --workspace --exclude pmvet-fixtures

# The release profile everywhere: another profile would build DynamoRIO again.
lint: ## formatting and clippy, warnings are errors
	$(CARGO) fmt --all --check
	$(CARGO) clippy --release --workspace --all-targets -- -D warnings

zoo: ## build the zoo, clean and with every bug, into target/zoo
	@$(MAKE) --silent --no-print-directory -C zoo -j$(JOBS) OUT=$(TARGET)/zoo

pmdk: ## build PMDK's example programs into target/pmdk
	@$(MAKE) --silent --no-print-directory -C targets/pmdk -j$(JOBS) OUT=$(TARGET)/pmdk

# mdBook without its watch and serve features, which need most of its dependencies. Once it is installed, nothing uses the network.
MDBOOK_VERSION := 0.4.52
MDBOOK := $(or $(wildcard $(TARGET)/tools/bin/mdbook),$(shell command -v mdbook),$(TARGET)/tools/bin/mdbook)

book: $(MDBOOK) ## build the book into target/book
	$(MDBOOK) build docs/book

$(TARGET)/tools/bin/mdbook:
	$(CARGO) install mdbook --locked --version $(MDBOOK_VERSION) --no-default-features --features search --root $(TARGET)/tools || \
		{ echo "mdBook is missing. Install it with: cargo install mdbook --version $(MDBOOK_VERSION)" >&2; exit 1; }

soak: ## the image check on every program, 20 times each, and the slow tests
	@$(SETUP) test
	@$(MAKE) --no-print-directory build zoo pmdk
	PMVET_SOAK=20 $(CARGO) test --release -p pmvet --test images --test check_pmdk --test check_zoo --test check_libpmemobj --test check_races --test durable_zoo --test durable_server --test durable_races --test durable_pmdk
	$(CARGO) test --release -p pmvet --test 'check*' --test 'verify*' --test 'race*' --test 'fuzz*' --test stops --test nothing_touched --test init_programs -- --ignored --nocapture
	$(CARGO) test --release -p pmvet-engines --lib fuzz -- --ignored --nocapture

bench: ## what tracing, checking, verifying and reporting cost, compared with native runs
	@$(SETUP) test
	@$(MAKE) --no-print-directory build pmdk
	@$(MAKE) --silent --no-print-directory -C zoo -j$(JOBS) OUT=$(TARGET)/zoo clean-variants
	@scripts/bench.sh
	@scripts/bench-check.sh
	@scripts/bench-sandbox.sh
	@scripts/bench-verify.sh
	@scripts/bench-race.sh
	@scripts/bench-race-cost.sh
	@$(CARGO) run --quiet --release -p pmvet-report --example many_findings
	@scripts/bench-report.py

bench-race: ## how long it takes to prove races, with forced schedules and with random delays
	@$(SETUP) test
	@$(MAKE) --no-print-directory build zoo
	@scripts/bench-confirm.sh

bench-fuzz: ## how fast and how far `pmvet fuzz` and AFL++ get on PMDK's maps, T seconds each (default 600)
	@$(SETUP) fuzz
	@$(MAKE) --no-print-directory build pmdk zoo
	@scripts/bench-fuzz.sh

fuzz: ## the trace reader on many more damaged files than in the tests
	PROPTEST_CASES=20000 $(CARGO) test --release -p pmvet-events --test trace_file

install: ## install into PREFIX (default /usr/local); DESTDIR for packagers
	@$(SETUP) build
	@$(MAKE) --no-print-directory build
	@scripts/install.sh

# Packages name the exact commit that they were built from.
packed = PMVET_COMMIT="$$(git describe --always --abbrev=12 --exclude='*' --dirty=' with changes' 2>/dev/null)" $(MAKE) --no-print-directory build

dist: ## pack what runs from any folder into a tarball, in target/dist
	@$(SETUP) package
	@$(packed)
	@scripts/dist.sh tar

deb: ## build a Debian package, in target/dist
	@$(SETUP) package
	@$(packed)
	@scripts/dist.sh deb

# Slurm's daemons are installed only for this goal, and none is left running.
test-slurm: ## try array jobs on a real Slurm, with four nodes on this host; needs root
	@$(SETUP) slurm
	@$(MAKE) --no-print-directory build zoo
	MAKEFLAGS= $(CARGO) test --release --workspace --test slurm -- --ignored --nocapture --test-threads=1

test-package: dist deb ## try both in a bare Debian; needs root, and the network the first time
	@$(SETUP) bare
	@scripts/test-package.sh
