"""Names of the files in a job's folder that a scheduler reads or writes. Standard library only."""

SCRIPT = "script.sh"
BATCH_LOG = "batch.log"
LOCAL_STATE = "local.json"
