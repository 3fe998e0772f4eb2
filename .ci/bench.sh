#!/usr/bin/env bash
# Measure the start-up of the verbs beside that of another launcher, which gets an environment of its own.
#
#   VENV  the environment of hpc-launch
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

venv=${VENV:-.venv}
other=$venv/peers
if [[ ! -x $other/bin/torchx ]]; then
    "$venv/bin/python" -m venv "$other"
    "$other/bin/python" -m pip install -q torchx==0.7.0 setuptools
fi
# As an installed package has it: an editable one may lack its byte code.
"$venv/bin/python" -m compileall -q hpc_launch
exec "$venv/bin/python" -m benchmarks.startup --torchx "$PWD/$other/bin/torchx" "$@"
