
# --- Messages ---
set -o pipefail
now() { printf '%(%s)T' -1; }
say() { printf '[hpc-launch %(%F %T)T] %s\n' -1 "$*"; }
die() { say "$*" >&2; exit 1; }
