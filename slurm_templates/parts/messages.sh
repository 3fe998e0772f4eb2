
# --- Messages ---
set -o pipefail
job_umask=$(umask) # of the training; only the user may change what this script writes and then runs
umask go-w
now() { printf '%(%s)T' -1; }
say() { printf '[hpc-launch %(%F %T)T] %s\n' -1 "$*"; }
die() { say "$*" >&2; exit 1; }
