
# --- The exit code of the task that failed first ---
if [ "$code" -ne 0 ] && [ -f "$messages" ]; then
    # srun's own code is the highest, including tasks that it killed itself; its messages report each task in order.
    first=$(tail -c "+$((skip + 1))" "$messages" | grep -m 1 -oE '^srun: error: [^ ]+: tasks? [0-9,-]+: .*')
    case $first in
        *': Exited with exit code '[1-9] | *': Exited with exit code '[1-9][0-9] | *': Exited with exit code '[12][0-9][0-9])
            code=${first##* }
            ;;
        *': Killed') code=137 ;;
        *': Aborted'*) code=134 ;;
        *': Segmentation fault'*) code=139 ;;
    esac
elif [ -f "$messages" ] && tail -c "+$((skip + 1))" "$messages" | grep -q '^srun: error: Node failure on '; then
    code=1 # with --no-kill, srun of 22.05 ends with that of the other nodes
fi
say "the step ended with exit code $code"
