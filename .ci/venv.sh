#!/usr/bin/env bash
# Make the virtual environment and install into it:
#
#   venv.sh quickstart   hpc-launch and what the example needs
#   venv.sh check        hpc-launch and the development tools, without PyTorch
#   venv.sh site         what builds the documentation site
#   venv.sh test         everything
#
#   PYTHON  the interpreter it is made from      VENV  its folder
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

what=${1:?usage: venv.sh quickstart|check|site|test}
python=${PYTHON:-python3}
venv=${VENV:-.venv}
log=$venv/install.log

# pip builds some packages in separate environments. These variables apply the constraints there too; otherwise such a
# build could download a second, much larger torch. Newer versions of pip read the second variable, older ones the first.
export PIP_CONSTRAINT=$PWD/constraints.txt
export PIP_BUILD_CONSTRAINT=$PIP_CONSTRAINT
export PIP_DISABLE_PIP_VERSION_CHECK=1
# Do not build DeepSpeed's operators: they take minutes and a compiler, and the example does not use them.
export DS_BUILD_OPS=0

fail() {
    echo "error: $*" >&2
    exit 1
}

# install MESSAGE PIP-ARGUMENTS...: one line on the screen, pip's output in the log.
install() {
    local message=$1 started=$SECONDS
    shift
    printf '  %s ... ' "$message"
    if ! "$venv/bin/python" -m pip install "$@" >>"$log" 2>&1; then
        echo "failed"
        grep -v '^WARNING' "$log" | tail -n 15 >&2
        fail "pip failed; its output is in $log"
    fi
    echo "done in $((SECONDS - started)) s"
}

command -v "$python" >/dev/null || fail "$python not found; choose one with: make PYTHON=/path/to/python3"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
    fail "$python is $("$python" -V 2>&1); Python 3.10 or newer is needed: make PYTHON=/path/to/python3"

echo "Installing into $venv"
if [[ ! -x $venv/bin/python ]]; then
    "$python" -m venv "$venv" || fail "$python -m venv failed; on Debian and Ubuntu: apt-get install python3-venv"
fi
: >"$log"

if [[ $what == quickstart || $what == test ]]; then
    # Without NumPy, torch warns in each training's log.
    install "PyTorch (can take minutes)" torch numpy
fi
install "hpc-launch" --editable .
if [[ $what == test ]]; then
    install "DeepSpeed" deepspeed
    install "libraries that the tests train with" --editable '.[train,libraries,mcp]'
    install "FlagScale" --no-deps flag-scale six # it asks for a PyTorch and tools of its own
fi
if [[ $what == site || $what == test ]]; then
    install "what builds the site" --editable '.[site]'
fi
if [[ $what == test ]]; then
    install "what releases are built and installed with" --editable '.[release]'
fi
if [[ $what == check || $what == test ]]; then
    install "the development tools" --editable '.[dev]'
fi
