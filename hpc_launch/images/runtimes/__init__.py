"""Container runtimes: how each starts a command inside an image."""
