#!/usr/bin/env bash
# Make the virtual environment and install into it: `quickstart` what the example needs, `test` all the rest too.
#
#   PYTHON  the interpreter it is made from      VENV  its folder
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

what=${1:?usage: venv.sh quickstart|test}
python=${PYTHON:-python3}
venv=${VENV:-.venv}
log=$venv/install.log

# pip builds some packages in environments of their own. Naming the constraints here, and not on a command line,
# binds those too: without it such a build could fetch a second, much larger torch. Newer versions of pip read
# the second variable for that, older ones the first.
export PIP_CONSTRAINT=$PWD/constraints.txt
export PIP_BUILD_CONSTRAINT=$PIP_CONSTRAINT
export PIP_DISABLE_PIP_VERSION_CHECK=1
# Build none of DeepSpeed's compiled operators: the example uses none, and they need a compiler and minutes.
export DS_BUILD_OPS=0

fail() {
    echo "error: $*" >&2
    exit 1
}

# install MESSAGE PIP-ARGUMENTS...: one line on the screen, all of pip's own in the log.
install() {
    local message=$1 started=$SECONDS
    shift
    printf '  %s ... ' "$message"
    if ! "$venv/bin/python" -m pip install "$@" >>"$log" 2>&1; then
        echo "failed"
        grep -v '^WARNING' "$log" | tail -n 15 >&2
        fail "pip could not install it; all it said is in $log"
    fi
    echo "done in $((SECONDS - started)) s"
}

command -v "$python" >/dev/null || fail "there is no $python; name one with: make PYTHON=/path/to/python3"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
    fail "$python is $("$python" -V 2>&1); Python 3.10 or newer is needed: make PYTHON=/path/to/python3"

echo "Installing into $venv (the first time this can take minutes, most of it PyTorch)"
if [[ ! -x $venv/bin/python ]]; then
    "$python" -m venv "$venv" || fail "$python -m venv failed; on Debian and Ubuntu: apt-get install python3-venv"
fi
: >"$log"

install "PyTorch" torch
install "hpc-launch" --editable .
if [[ $what == test ]]; then
    install "DeepSpeed" deepspeed
    install "the development tools" --editable '.[dev,train]'
fi
