#!/usr/bin/env bash
# Fail when a folder of the package has more lines than .ci/size-budget.txt allows. Raise a limit there only on purpose.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

failed=0
declare -A limits
while read -r folder limit _; do
    [[ -z $folder || $folder == \#* ]] || limits[$folder]=$limit
done <.ci/size-budget.txt

while read -r lines folder; do
    limit=${limits[$folder]:-}
    unset -v "limits[$folder]"
    if [[ -z $limit ]]; then
        echo "hpc_launch/$folder has no limit: add a line to .ci/size-budget.txt"
        failed=1
    elif ((lines > limit)); then
        echo "hpc_launch/$folder has $lines lines, limit $limit: make it smaller, or raise the limit in .ci/size-budget.txt"
        failed=1
    fi
done < <(
    find hpc_launch -name '*.py' -exec wc -l {} + | awk '$2 != "total" {
        n = split($2, parts, "/"); folder = n > 2 ? parts[2] : "."; lines[folder] += $1; all += $1
    } END { for (folder in lines) print lines[folder], folder; print all, "all" }'
)
for folder in "${!limits[@]}"; do
    echo "hpc_launch/$folder does not exist: remove its line from .ci/size-budget.txt"
    failed=1
done
exit "$failed"
