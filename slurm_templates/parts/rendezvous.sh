
# --- Rendezvous ---
port_answers() { # HOST PORT: somebody listens there, or it does not answer in time
    BASH_ENV='' timeout 5 bash -c 'exec 3<>"/dev/tcp/$1/$2"' _ "$1" "$2" 2>/dev/null
    case $? in 0 | 124) ;; *) return 1 ;; esac
}
choose_port() { # FIRST LAST: sets MASTER_PORT
    # A free port at a random place: the training runs what a server at this port sends, so no other user of the node may
    # know the port in advance. Two jobs on a node differ.
    local size=$(($2 - $1 + 1)) number left
    number=$(od -An -N4 -tu4 /dev/urandom) || number=$RANDOM
    for ((left = size < 50 ? size : 50; left > 0; left--, number++)); do
        MASTER_PORT=$(($1 + number % size))
        ! port_answers 127.0.0.1 "$MASTER_PORT" || continue
        # The address is another node's where `hpc-launch run` starts the script.
        [ "${SLURMD_NODENAME:-}" = "${hosts[0]:-}" ] || return 0
        port_answers "$MASTER_ADDR" "$MASTER_PORT" || return 0
    done
    die "found no free port between $1 and $2 on $HOSTNAME"
}
job_rendezvous
export MASTER_ADDR MASTER_PORT
say "rendezvous at $MASTER_ADDR:$MASTER_PORT"
