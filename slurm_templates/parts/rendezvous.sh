
# --- Rendezvous ---
choose_port() { # FIRST LAST: sets MASTER_PORT
    # From the job id, so that two jobs on a node differ; skip a port in use, for this shell is on the first node.
    local number=${job_id//[!0-9]/} size=$(($2 - $1 + 1))
    MASTER_PORT=$(($1 + (10#0$number + 7919 * restart) % size))
    for _ in {1..20}; do
        (exec 3<>"/dev/tcp/127.0.0.1/$MASTER_PORT") 2>/dev/null || break
        MASTER_PORT=$(($1 + (MASTER_PORT - $1 + 1) % size))
    done
}
job_rendezvous
export MASTER_ADDR MASTER_PORT
say "rendezvous at $MASTER_ADDR:$MASTER_PORT"
