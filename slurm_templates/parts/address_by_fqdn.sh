
# --- The fully qualified name of a host ---
address_of() { # NAME
    local name
    read -r _ _ name < <(getent ahosts "$1") && [ -n "$name" ] && printf '%s\n' "$name"
}
node_functions+=(address_of)
