# SPDX-License-Identifier: Apache-2.0
"""What several programs of the lab have in common: options, and what they say meanwhile."""

import argparse
import hashlib
import sys
from pathlib import Path

from tiercache.blocks import SLOT_ALIGNMENT
from tiercache.errors import ConfigError
from tiercache.tierconfig import parse_bytes


def say(text: str) -> None:
    """A line on stderr, at once: stdout is for what was found."""
    print(text, file=sys.stderr, flush=True)


def block_hash(number: int) -> bytes:
    """The hash of block ``number``: as even as the engine's, on which tables count."""
    return hashlib.sha256(number.to_bytes(8, "big")).digest()


def positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return value


def block_size(text: str) -> int:
    """Bytes of whole slots, such as ``7MiB``."""
    try:
        nbytes = parse_bytes("size", text)
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if nbytes % SLOT_ALIGNMENT:
        raise argparse.ArgumentTypeError(f"{text} is not a multiple of {SLOT_ALIGNMENT} bytes")
    return nbytes


def block_sizes(text: str) -> list[int]:
    return [block_size(part) for part in text.split(",")]


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
