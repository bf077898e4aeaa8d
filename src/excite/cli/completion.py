"""Let a shell complete commands, options, experiments and arms: `excite completion bash`."""

import click
from click.shell_completion import get_completion_class

SHELLS = {
    "bash": 'eval "$(excite completion bash)"   # in ~/.bashrc',
    "zsh": 'eval "$(excite completion zsh)"    # in ~/.zshrc',
    "fish": "excite completion fish | source   # in ~/.config/fish/config.fish",
}


@click.command(epilog="\b\nExample: excite completion bash\n" + "\n".join(SHELLS.values()))
@click.argument("shell", type=click.Choice(list(SHELLS)))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print what makes SHELL complete the command line; put the line below into its start-up file."""
    kind = get_completion_class(shell)
    assert kind  # noqa: S101
    click.echo(kind(context.find_root().command, {}, "excite", "_EXCITE_COMPLETE").source())
