"""Command `completion`, which prints the script that completes commands, options and their values in a shell."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence

COMPLETION_EXAMPLE = """\
examples:
  bash:  halofeed completion bash > ~/.local/share/bash-completion/completions/halofeed
  zsh:   halofeed completion zsh > ~/.halofeed-completion; echo 'source ~/.halofeed-completion' >> ~/.zshrc
  fish:  halofeed completion fish > ~/.config/fish/completions/halofeed.fish

The script holds the words of this version: print it again after an update. A new shell reads it.
"""
# zsh's bashcompinit runs the script of bash.
_ZSH = "autoload -U +X compinit && compinit\nautoload -U +X bashcompinit && bashcompinit\n"
# Bash splits --layout=folders at "=", which is one of its COMP_WORDBREAKS, so the option may be two words before.
_BASH = """\
_halofeed() {{
    local word="${{COMP_WORDS[COMP_CWORD]}}" before="${{COMP_WORDS[COMP_CWORD-1]}}" known=""
    if [ "$word" = "=" ]; then word=""; elif [ "$before" = "=" ]; then before="${{COMP_WORDS[COMP_CWORD-2]}}"; fi
    case "${{COMP_WORDS[1]}} $before" in
{values}
    esac
    if [ "$COMP_CWORD" = 1 ]; then
        known="{commands}"
    elif [ -z "$known" ] && [ "${{word#-}}" != "$word" ]; then
        case "${{COMP_WORDS[1]}}" in
{options}
        esac
    fi
    COMPREPLY=($(compgen -W "$known" -- "$word"))
}}
complete -o default -F _halofeed halofeed
"""

Parsers = Mapping[str, argparse.ArgumentParser]


def completion_script(shell: str, parsers: Parsers) -> str:
    """Return the completion script of a shell.

    Args:
        shell: a key of `SHELLS`.
        parsers: parser of each command by name.

    >>> show = argparse.ArgumentParser(add_help=False)
    >>> _ = show.add_argument("--step", choices=("first", "last"), help="number of the batch")
    >>> print(completion_script("fish", {"show": show}).splitlines()[-1])
    complete -c halofeed -n '__fish_seen_subcommand_from show' -l step -x -a 'first last' -d 'number of the batch'
    """
    return SHELLS[shell](parsers)


def _bash(parsers: Parsers) -> str:
    values, options = [], []
    for command, parser in parsers.items():
        flags = [flag for action in _options(parser) for flag in action.option_strings]
        options.append(f'            {command}) known="{" ".join(flags)}" ;;')
        # argparse has no public list of a parser's arguments (Python 3.11 to 3.14).
        for action in parser._actions:
            if words := _values(action):
                before = action.option_strings or [command]  # an argument follows its command
                pattern = "|".join(f'"{command} {word}"' for word in before)
                values.append(f'        {pattern}) known="{" ".join(words)}" ;;')
    return _BASH.format(values="\n".join(values), options="\n".join(options), commands=" ".join(parsers))


def _zsh(parsers: Parsers) -> str:
    return _ZSH + _bash(parsers)


def _fish(parsers: Parsers) -> str:
    lines = [f"complete -c halofeed -n __fish_use_subcommand -f -a '{' '.join(parsers)}'"]
    for command, parser in parsers.items():
        lines += [
            f"complete -c halofeed -n '__fish_seen_subcommand_from {command}' {_fish_words(action)}"
            for action in parser._actions
            if action.help != argparse.SUPPRESS and (action.option_strings or _values(action))
        ]
    return "\n".join(lines) + "\n"


def _fish_words(action: argparse.Action) -> str:
    """Return the options of fish's `complete` for an argument: its names, its values and its help."""
    parts = [
        f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}" for flag in action.option_strings
    ]
    if words := _values(action):
        parts.append(f"-x -a '{' '.join(words)}'")  # -x: no file names beside the words
    elif action.nargs != 0:
        parts.append("-r")
    text = (action.help or "").split(";")[0].split(". ")[0]
    # Within single quotes fish escapes the backslash and the quote alone.
    parts.append("-d '" + text.replace("\\", "\\\\").replace("'", "\\'").replace("%%", "%") + "'")
    return " ".join(parts)


SHELLS: dict[str, Callable[[Parsers], str]] = {"bash": _bash, "zsh": _zsh, "fish": _fish}


def _options(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    """Return the options of a command that its help shows."""
    return [one for one in parser._actions if one.option_strings and one.help != argparse.SUPPRESS]


def _values(action: argparse.Action) -> Sequence[str]:
    """Return the words that an option takes, if they are known."""
    # Both take any text, since a path or an unknown name has an answer of its own, so they have no choices.
    if action.dest == "layout":
        from halofeed.prep.layouts import LAYOUTS

        return list(LAYOUTS)
    if action.dest == "config":
        from halofeed.trainer.config import named_configs

        return list(named_configs())
    return list(map(str, action.choices or ()))
