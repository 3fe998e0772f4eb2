
# --- The address of a network interface ---
own_address() { # INTERFACE: its address on this node, IPv4 if it has one
    local family address
    for family in -4 -6; do
        read -r _ _ _ address _ < <(PATH=$PATH:/usr/sbin:/sbin ip -o "$family" address show dev "$1" scope global)
        [ -z "$address" ] || break
    done
    [ -n "$address" ] && printf '%s\n' "${address%%/*}"
}
address_of_first_node() { # INTERFACE
    local address
    if [ "${SLURMD_NODENAME:-}" = "${hosts[0]}" ]; then
        address=$(own_address "$1")
    else # this shell is not on a node: `hpc-launch run`
        address=$(env -u SLURM_MEM_PER_CPU -u SLURM_MEM_PER_GPU \
            srun --job-name=hpc-launch --overlap --mem=0 --nodes=1 --ntasks=1 --nodelist="${hosts[0]}" bash -c "$(declare -f own_address); own_address $1")
    fi
    [ -n "$address" ] && printf '%s\n' "$address"
}
node_functions+=(own_address)
