# SPDX-License-Identifier: Apache-2.0
"""How things look: ANSI colours that a dark and a light terminal can both show.

No colour is the only sign of anything: marks, words, bold and reverse say the same.
"""

HEAD = "bold"
BAD = "bold red"
WARN = "bold magenta"
GOOD = "bold green"
DIM = "dim"
CURSOR = "reverse"
SORTED = "bold underline"
#: Of a bar: live, demoted, busy, free.
BAR = ("green", "cyan", "magenta", "")
