# SPDX-License-Identifier: Apache-2.0
"""Options that several programs of the lab have."""

import argparse
from pathlib import Path


def directory(text: str) -> Path:
    """A directory that exists; argparse turns what is raised into its own error."""
    path = Path(text)
    if not path.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is not a directory")
    return path


def add_path(parser: argparse.ArgumentParser) -> None:
    """``--path``: where files are made, and removed at the end."""
    parser.add_argument(
        "--path",
        type=directory,
        default=Path.cwd(),
        help="a directory on the disk (default: this one)",
    )
