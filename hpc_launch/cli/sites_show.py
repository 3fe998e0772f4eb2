"""`sites show`: show a resolved profile, with the origin of each value."""

from __future__ import annotations

import click

from hpc_launch.cli.shared_options import complete_site, echo_json, json_option


@click.command("show")
@click.argument("name", shell_complete=complete_site)
@click.argument("key", required=False)
@click.option("--yaml", "as_yaml", is_flag=True, help="Print a self-contained YAML file, with origins as comments.")
@json_option
def command(name: str, key: str | None, as_yaml: bool, as_json: bool) -> None:
    """Show a profile with all layers resolved: one value per line, with the file and line that set it.

    NAME is a profile, base or template, or the path of a file.

    \b
    hpc-launch sites show lumi-g
    hpc-launch sites show lumi-g queues.standard-g
    hpc-launch sites show lumi-g --yaml > copy.yaml
    """
    from hpc_launch.base.errors import UsageError
    from hpc_launch.cli.warn import warn
    from hpc_launch.site_tools.list_profiles import profile_details

    if as_yaml and (key is not None or as_json):
        raise UsageError("--yaml cannot be combined with KEY or --json")
    profile = profile_details(name)
    warn(profile.findings)
    if as_yaml:
        click.echo(profile.text, nl=False)
        return
    lines = profile.lines
    if key is not None:
        lines = [line for line in lines if line.key == key or line.key.startswith(f"{key}.")]
        if not lines:
            import difflib

            matches = difflib.get_close_matches(key, {line.key for line in profile.lines}, 1)
            hint = f"did you mean `{matches[0]}`?" if matches else "without KEY, `sites show` lists all keys"
            raise UsageError(f"the profile does not set `{key}`", hint)
    if as_json:
        echo_json([line.as_json() for line in lines])
        return
    for line in lines:
        click.echo(str(line))
