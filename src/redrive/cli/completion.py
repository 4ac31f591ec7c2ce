"""``redrive completion``: the shell's own script, for commands and flags."""

from __future__ import annotations

import click

from redrive.cli.options import examples


@click.command(
    short_help="Print the completion script of a shell.",
    epilog=examples(
        'eval "$(redrive completion bash)"                                  # in ~/.bashrc',
        'eval "$(redrive completion zsh)"                                   # in ~/.zshrc',
        "redrive completion fish > ~/.config/fish/completions/redrive.fish",
    ),
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the script that completes redrive's commands and flags in SHELL."""
    from click.shell_completion import get_completion_class

    made = get_completion_class(shell)
    assert made is not None  # noqa: S101 - click knows these three
    click.echo(made(ctx.find_root().command, {}, "redrive", "_REDRIVE_COMPLETE").source())
