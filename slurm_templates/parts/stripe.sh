
# --- Striping of the checkpoint folder ---
# Files inherit it from the folder in which they are created (lfs-setstripe(1)), so a folder with files keeps what it has.
if type -P lfs >/dev/null && [ -z "$(ls -A "$checkpoints" 2>/dev/null)" ]; then
    { mkdir -p "$checkpoints" && lfs setstripe "${job_stripe[@]}" "$checkpoints"; } ||
        say "warning: cannot stripe $checkpoints as the site recommends (lfs setstripe ${job_stripe[*]})"
fi
