#!/usr/bin/env bash
# Check the workflow files with actionlint, where it is installed. No package index has it for every machine:
# `go install github.com/rhysd/actionlint/cmd/actionlint@latest`, or see its documentation. The workflow installs it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if ! command -v actionlint >/dev/null; then
    echo "actionlint is not installed: .github/workflows not checked here (the workflow checks itself)"
    exit 0
fi
exec actionlint
