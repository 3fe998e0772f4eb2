
# --- The IP address of a host name ---
address_of() { # NAME: IPv4 if there is one, and no loopback address, which some systems give to a node's own name
    local database address
    for database in ahostsv4 ahostsv6; do
        while read -r address _; do
            case $address in
                127.* | ::1 | ::ffff:127.*) ;;
                *) printf '%s\n' "$address" && return ;;
            esac
        done < <(getent "$database" "$1")
    done
    return 1
}
node_functions+=(address_of)
