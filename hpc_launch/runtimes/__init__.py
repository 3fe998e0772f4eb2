"""The container runtimes: how each starts a command in an image."""
