
# --- Rendezvous: the node chose the port, and holds it ---
choose_port() { MASTER_PORT=$HPC_LAUNCH_ROLE_MASTER_PORT; }
job_rendezvous
export MASTER_ADDR MASTER_PORT
