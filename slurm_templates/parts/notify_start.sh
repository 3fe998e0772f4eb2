
# --- Notifications: start, first step, no progress ---
notify 0 job "$$" &
notifier=$!
