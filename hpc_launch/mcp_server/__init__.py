"""The server of the Model Context Protocol, by which assistants use hpc-launch within limits."""
