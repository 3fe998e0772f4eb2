"""`mcp`: serve assistants over the Model Context Protocol."""

from __future__ import annotations

import click


@click.command("mcp")
def command() -> None:
    """Serve assistants over the Model Context Protocol (MCP), on stdin and stdout.

    They read: validate, plan, render, status, list, logs, why, report. With a section `agents:` in user.yaml they also
    submit, within its limits, and cancel and resubmit what they have submitted. Start it in the folder of the project:
    job files elsewhere are not read.

    \b
    hpc-launch mcp
    """
    try:
        from hpc_launch.mcp_server.server import serve
    except ModuleNotFoundError as error:
        from hpc_launch.base.errors import UsageError

        raise UsageError(f"{error.name} is not installed", "pip install 'hpc-launch[mcp]'") from None
    serve()
