#!/usr/bin/env bash
# Run every check, also after one failed, and sum up. Exits 1 if any failed.
#
#   VENV  the environment with the tools      PYTEST_ARGS  more arguments for pytest
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1

bin=$PWD/${VENV:-.venv}/bin
[[ ${VENV:-.venv} != /* ]] || bin=$VENV/bin
export PATH=$bin:$PATH
read -r -a pytest_args <<<"${PYTEST_ARGS:-}"
logs=.test-logs
mkdir -p "$logs"
summary=()
failed=0

# check NAME COMMAND...: shows the output, keeps a copy, notes how it ended.
check() {
    local name=$1 started=$SECONDS status word=ok
    shift
    printf '\n== %s\n' "$name"
    "$@" 2>&1 | tee "$logs/$name.log"
    status=${PIPESTATUS[0]}
    if ((status != 0)); then
        word="FAILED (exit $status)"
        failed=1
    fi
    summary+=("$(printf '  %-13s %-18s %4d s' "$name" "$word" $((SECONDS - started)))")
}

mapfile -t scripts < <(git ls-files -co --exclude-standard '.ci/*.sh' .ci/run 2>/dev/null)
((${#scripts[@]})) || scripts=(.ci/*.sh .ci/run)

check ruff ruff check .
check format ruff format --check .
check mypy mypy
check imports lint-imports
check shellcheck shellcheck "${scripts[@]}"
# Three processes on the two cores of the smallest machine we support: much of the time is waiting for a Slurm. A file's
# tests stay together, so that what a file sets up at some cost, a Slurm say, is set up once; the longest come first.
check pytest pytest -n 3 --dist loadfile --no-loadscope-reorder -m "not prove" "${pytest_args[@]}"

printf '\n== summary\n'
printf '%s\n' "${summary[@]}"
# pytest's own count comes last, where people and machines look for it.
closing=$(grep -E '[0-9]+ (passed|failed|skipped|errors?)\b.* in [0-9.]+s' "$logs/pytest.log" | tail -n 1)
printf '%s\n' "${closing:-0 passed, 1 failed}"
exit "$failed"
