
# --- Nobody reads the environment any more ---
rm -f "$environment"
