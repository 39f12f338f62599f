# SPDX-License-Identifier: Apache-2.0
"""Pictures (SVG) of the running monitor: every view, of a segment, the demo or a recording.

Covers the pictures; each is exported by the toolkit from the app as it runs, not drawn.
"""

import argparse
import asyncio
import os
import re
import sys
from contextlib import ExitStack
from pathlib import Path

from tiercache.tui.choosing import opened
from tiercache.tui.feed import State
from tiercache.tui.monitor import Monitor
from tiercache.tui.settings import THEMES, Settings
from tiercache.tui.sources import Source
from tiercache.tui.text import ASCII, UNICODE

#: What to press for each picture.
PICTURES = {
    "overview": "1",
    "sequences": "2",
    "eviction": "3",
    "tiers": "4",
    "events": "5",
    "help": "question_mark",
}
POLL_S = 0.1
#: The toolkit's pictures load a font from the net, and any font of fixed width does.
UNWANTED = re.compile(r"@font-face \{.*?\}\s*|<!--.*?-->\s*", re.DOTALL)


async def _shoot(source: Source, options: argparse.Namespace) -> list[Path]:
    width, height = map(int, options.size.split("x"))
    glyphs = ASCII if options.ascii else UNICODE
    monitor = Monitor(source, options.interval, glyphs, theme=options.theme)
    written = []
    async with monitor.run_test(size=(width, height)) as pilot:
        while monitor.frame().status.state is State.WAITING:
            await pilot.pause(POLL_S)
        await pilot.pause(options.wait)
        for name, key in PICTURES.items():
            await pilot.press(key)
            await pilot.pause()
            path = options.out / f"{name}.svg"
            picture = monitor.export_screenshot(title=f"tiercache-top: {name}")
            path.write_text(UNWANTED.sub("", picture))
            written.append(path)
    return written


def main() -> None:
    """Parse arguments, run the monitor, print the names of the pictures."""
    parser = argparse.ArgumentParser(prog="scripts/screenshots", description=__doc__)
    parser.add_argument("pool", nargs="?", help="name, pid or path of a pool [the demo]")
    parser.add_argument("--replay", type=Path, help="a recording, played to --wait")
    parser.add_argument("--out", type=Path, default=Path("screenshots"), help="[%(default)s]")
    parser.add_argument("--size", default="120x36", help="columns x lines [%(default)s]")
    parser.add_argument("--wait", type=float, default=30.0, help="seconds to run [%(default)s]")
    parser.add_argument("--interval", type=float, default=1.0, help="seconds [%(default)s]")
    parser.add_argument("--theme", choices=THEMES, default="textual-dark", help="[%(default)s]")
    parser.add_argument("--ascii", action="store_true", help="ASCII characters alone")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    os.environ.pop("NO_COLOR", None)
    made = options.pool is None and options.replay is None
    settings = Settings(
        interval=options.interval, pool=options.pool, replay=options.replay, demo=made
    )
    with ExitStack() as stack:
        source = stack.enter_context(opened(settings))
        for path in asyncio.run(_shoot(source, options)):
            sys.stdout.write(f"{path}\n")


if __name__ == "__main__":
    main()
