"""Command `completion`, which prints the script that completes commands, options and their values in a shell."""

from __future__ import annotations

import argparse

from halofeed.parser import subparsers

COMPLETION_EXAMPLE = """\
examples:
  bash:  halofeed completion bash > ~/.local/share/bash-completion/completions/halofeed
  zsh:   halofeed completion zsh > ~/.halofeed-completion; echo 'source ~/.halofeed-completion' >> ~/.zshrc
  fish:  halofeed completion fish > ~/.config/fish/completions/halofeed.fish

The script holds the words of this version: print it again after an update. A new shell reads it.
"""
# Bash splits --layout=folders into three words, which shtab's function takes for an option and two arguments.
_BASH = """\
{script}
_halofeed() {{
    local word words=()
    for word in "${{COMP_WORDS[@]:0:COMP_CWORD+1}}"; do
        [ "$word" = "=" ] || words+=("$word")
    done
    [ "${{COMP_WORDS[COMP_CWORD]}}" = "=" ] && words+=("")
    local COMP_WORDS=("${{words[@]}}") COMP_CWORD=$((${{#words[@]}} - 1))
    _shtab_halofeed
}}
complete -o default -F _halofeed halofeed
"""
# The script registers itself only where it is evaluated, and ~/.zshrc sources it.
_ZSH = """\
autoload -U +X compinit && compinit
eval "$(cat <<'HALOFEED_COMPLETION'
{script}
HALOFEED_COMPLETION
)"
"""
SHELLS = {"bash": _BASH, "zsh": _ZSH, "fish": "{script}"}
"""Text that is printed for each shell around the script of shtab."""


def completion_script(shell: str, parser: argparse.ArgumentParser) -> str:
    """Return the completion script of a shell.

    Args:
        shell: a key of `SHELLS`.
        parser: parser of the command line, whose options get their values.

    >>> parser = argparse.ArgumentParser("halofeed")
    >>> show = parser.add_subparsers(dest="command").add_parser("show", help="show a batch")
    >>> _ = show.add_argument("--step", choices=("first", "last"), help="number of the batch")
    >>> script = completion_script("fish", parser)
    >>> print(*(line for line in script.splitlines() if "-l step" in line))
    complete -c halofeed -n '_shtab_halofeed_using show' -l step -xka "first last" -d 'number of the batch'
    """
    import shtab

    for command in subparsers(parser).values():
        for action in command._actions:
            _add_values(action)
    return SHELLS[shell].format(script=shtab.complete(parser, shell=shell))


def _add_values(action: argparse.Action) -> None:
    """Give an option the words that it takes, if they are known, else file names."""
    import shtab

    # Both accept any text, so the parser has no choices: other code reports an unknown name or path.
    if action.dest == "layout":
        from halofeed.prep.layouts import LAYOUTS

        action.choices = list(LAYOUTS)
    elif action.dest == "config":
        from halofeed.trainer.config import named_configs

        action.choices = list(named_configs())
    elif action.choices is None and action.nargs != 0:
        action.complete = shtab.FILE  # type: ignore[attr-defined]  # the attribute by which shtab is told
