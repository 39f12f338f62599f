# SPDX-License-Identifier: Apache-2.0
"""Write docs/commands/: a page for each command, and a list of them.

Covers what follows from the commands: a page's last part is the command's help. What stands above
it was written by hand and is kept.
"""

import argparse
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import click

from tiercache.cli.lazy import Deferred
from tiercache.cli.main import COMMANDS, PROGRAM, tiercache

PAGES = Path(__file__).parents[2] / "docs" / "commands"
#: What follows is made from the help.
MARK = "<!-- scripts/docs_commands writes what follows -->\n"
#: As wide as click makes a help on any terminal that is not narrow.
WIDTH = 80


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, prog="scripts/docs_commands")
    parser.parse_args()
    write()


def write() -> None:
    PAGES.mkdir(exist_ok=True)
    for path, text in pages():
        path.write_text(text)


def pages() -> Iterator[tuple[Path, str]]:
    """Every page and what it has to say."""
    yield _page("README", "Commands", "".join(listed()))
    for name in shown():
        yield _page(name, f"{PROGRAM} {name}", indented(help_of(name)))


def shown() -> dict[str, Deferred]:
    """The commands that the help has, by name."""
    return {name: command for name, command in COMMANDS.items() if not command.hidden}


def _page(name: str, title: str, text: str) -> tuple[Path, str]:
    """A page with ``text`` below the mark; what was written above it is kept."""
    path = PAGES / f"{name}.md"
    before = path.read_text() if path.exists() else ""
    above = before.partition(MARK)[0] or f"# {title}\n\n"
    return path, f"{above}{MARK}\n{text}"


def indented(text: str) -> str:
    return "".join(f"    {line}".rstrip() + "\n" for line in text.splitlines())


def help_of(name: str) -> str:
    root = click.Context(tiercache, info_name=PROGRAM, **tiercache.context_settings)
    command = COMMANDS[name].load()
    with click.Context(command, info_name=name, parent=root, terminal_width=WIDTH) as context:
        return command.get_help(context)


def listed() -> Iterator[str]:
    """The list of all commands, under the headings of the help."""
    for number, (section, commands) in enumerate(groupby(shown().items(), _section)):
        yield "\n" * (number > 0) + f"## {section}\n\n| | |\n|---|---|\n"
        for name, command in commands:
            yield f"| [`{name}`]({name}.md) | {command.help} |\n"


def _section(item: tuple[str, Deferred]) -> str:
    return item[1].section


if __name__ == "__main__":
    main()
