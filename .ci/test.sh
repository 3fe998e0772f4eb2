#!/usr/bin/env bash
# Run the checks and the tests, also after one has failed, and sum up. Exits with 1 if any failed.
#
#   test.sh check    lint, types, import layers, and the tests that need no Slurm, torch or cluster
#   test.sh all      the same checks, and every test but those of `make prove`
#
#   VENV  the environment with the tools      PYTEST_ARGS  more arguments for pytest
#   COVERAGE  yes: measure the coverage of `check`; it must reach the minimum in pyproject.toml
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1

what=${1:?usage: test.sh check|all}
bin=$PWD/${VENV:-.venv}/bin
[[ ${VENV:-.venv} != /* ]] || bin=$VENV/bin
export PATH=$bin:$PATH
unset PYTHONDONTWRITEBYTECODE # thousands of processes would compile the same code
read -r -a pytest_args <<<"${PYTEST_ARGS:-}"
logs=.test-logs
mkdir -p "$logs"
summary=()
failed=0

# note NAME STATUS SECONDS: a line of the summary.
note() {
    local word=ok
    if (($2 != 0)); then
        word="FAILED (exit $2)"
        failed=1
    fi
    summary+=("$(printf '  %-13s %-18s %4d s' "$1" "$word" "$3")")
}

# lint NAME COMMAND...: its output goes to the log, then to the screen.
lint() {
    local name=$1 started=$SECONDS status=0
    shift
    "$@" >"$logs/$name.log" 2>&1 || status=$?
    printf '%d %d\n' "$status" $((SECONDS - started)) >"$logs/$name.status"
}

# in_memory FOLDER: whether it has room for what the tests write, and programs may run there.
in_memory() {
    local free options
    read -r free options < <(findmnt --bytes --noheadings --types tmpfs --output AVAIL,OPTIONS --target "$1")
    [[ -w $1 && ${free:-0} -gt $((4 << 30)) && ,$options, != *,noexec,* ]]
}

mapfile -t scripts < <(git ls-files -co --exclude-standard '.ci/*.sh' .ci/run 2>/dev/null)
((${#scripts[@]})) || scripts=(.ci/*.sh .ci/run)
lints=(ruff format mypy imports size shellcheck actionlint)
rm -f "$logs"/*.status

# The checks run beside the tests, which wait much of the time.
{
    lint ruff ruff check .
    lint format ruff format --check .
    lint imports lint-imports
    lint size .ci/size-budget.sh
    lint shellcheck shellcheck "${scripts[@]}"
    lint actionlint .ci/actionlint.sh
    lint mypy mypy
} &
lints_process=$!

run=(pytest)
# In memory where there is room: many tests would wait for the disk.
if in_memory /dev/shm; then
    export PYTEST_DEBUG_TEMPROOT=/dev/shm
    run+=(-o tmp_path_retention_policy=failed)
fi
case $what in
check)
    # No process waits while another has tests left.
    run+=(-n 4 --dist worksteal -m "not (cluster or torch or slow or prove)" --hypothesis-profile=quick)
    # The minimum is checked below, with a line of its own in the summary.
    [[ ${COVERAGE:-no} == no ]] || run+=(--cov --cov-report= --cov-fail-under=0)
    ;;
all)
    # A file's tests stay together, so that what they share, a Slurm say, is set up once; the longest files come first.
    # Four processes on two cores: much of the time is waiting for a Slurm. With five, waits run out.
    run+=(-n 4 --dist loadfile --no-loadscope-reorder -m "not prove")
    ;;
*)
    echo "usage: test.sh check|all" >&2
    exit 2
    ;;
esac
printf '\n== pytest\n'
started=$SECONDS
# Who imports a test file first rewrites its assertions, and keeps the result: four at once would all do it.
if ! compgen -G 'tests/__pycache__/*-pytest-*.pyc' >/dev/null; then
    pytest --collect-only -q >/dev/null 2>&1
fi
"${run[@]}" "${pytest_args[@]}" 2>&1 | tee "$logs/pytest.log"
tests=${PIPESTATUS[0]} tests_seconds=$((SECONDS - started))

wait "$lints_process"
for name in "${lints[@]}"; do
    printf '\n== %s\n' "$name"
    cat "$logs/$name.log"
    read -r status seconds <"$logs/$name.status"
    note "$name" "$status" "$seconds"
done
note pytest "$tests" "$tests_seconds"
# Selected tests cover less: the minimum holds for all of them.
if [[ $what == check && ${COVERAGE:-no} != no && -z ${PYTEST_ARGS:-} ]]; then
    started=$SECONDS status=0
    printf '\n== coverage\n'
    coverage report --skip-covered --skip-empty >"$logs/coverage.log" 2>&1 || status=$?
    tail -n 2 "$logs/coverage.log"
    note coverage "$status" $((SECONDS - started))
fi

printf '\n== summary\n'
printf '%s\n' "${summary[@]}"
# pytest's own count comes last, where people and programs look for it.
closing=$(grep -E '[0-9]+ (passed|failed|skipped|errors?)\b.* in [0-9.]+s' "$logs/pytest.log" | tail -n 1)
printf '%s\n' "${closing:-0 passed, 1 failed}"
exit "$failed"
