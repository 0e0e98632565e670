# pmvet from make, for any CI. Put it beside your Makefile, say `include pmvet.mk` there, and set these two.
PMVET_PROGRAM ?= ./ledger
PMVET_WORKLOAD ?= /dev/shm/ledger 5

.PHONY: vet vet-baseline

# Fails if there is an error that is not in the baseline.
vet: $(PMVET_PROGRAM)
	pmvet vet --budget 2m $(addprefix --since ,$(wildcard pmvet-baseline.json)) \
		--export-sarif pmvet.sarif --export-junit pmvet.xml --export-html pmvet.html \
		-- $(PMVET_PROGRAM) $(PMVET_WORKLOAD)

# Accepts what the last run has found. Commit the file.
vet-baseline:
	pmvet baseline $(if $(wildcard pmvet-baseline.json),update,write)
