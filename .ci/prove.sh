#!/usr/bin/env bash
# The proofs that take longer than the tests: real faults in real runs. Each part goes on where it was interrupted.
#
#   VENV    the environment with the tools      PROVE    some of: tests matrix drivers killed restart inside goodput nodes ssh-kills ssh-faults sweep
#                                                        role-times role-deaths role-pairs (these), grid
#   PROVE_WORKERS  rows or rounds side by side (3)        ROUNDS   rounds of drivers that are killed and frozen (200)
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1

python=${VENV:-.venv}/bin/python
read -r -a parts <<<"${PROVE:-tests matrix drivers killed restart inside goodput nodes ssh-kills ssh-faults sweep role-times role-deaths role-pairs}"
failed=0
for part in "${parts[@]}"; do
    printf '\n== %s\n' "$part"
    case $part in
    matrix) "$python" -m tests.prove matrix --workers "${PROVE_WORKERS:-3}" ;;
    drivers) "$python" -m tests.prove drivers --rounds "${ROUNDS:-200}" --workers "${PROVE_WORKERS:-3}" ;;
    inside | killed | ssh-kills | sweep | role-deaths | role-pairs | grid) "$python" -m tests.prove "$part" --workers "${PROVE_WORKERS:-3}" ;;
    tests) "${python%/*}/pytest" -q -n 2 --dist loadfile -m prove ;;
    *) "$python" -m tests.prove "$part" ;;
    esac || failed=1
done
printf '\n== pages\n'
"$python" -m tests.prove pages || failed=1
exit "$failed"
