
# --- Hold the spares ---
# Nothing else is started there: the next attempt takes one in the place of a host that fails.
say "holds ${#job_spare_hosts[@]} of $job_spares spares: ${job_spare_hosts[*]:-no other host is left}"
if [ "${#job_spare_hosts[@]}" -gt 0 ]; then
    hold "$attempt_dir/spares" --spares "${job_spare_hosts[@]}"
    spare_holder=$holder
    call_after() { kill -s TERM "$spare_holder" 2>/dev/null; } # a script that was started by hand has no supervisor
fi
