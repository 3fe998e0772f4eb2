"""What slows down a running training: rules over the watcher's samples and the first lines of the logs."""
