# SPDX-License-Identifier: Apache-2.0
"""How fast the engine computes prompts, from what its steps did. Pure: times are given."""

from collections import deque

#: Steps with fewer tokens decode for the most part, which says nothing about prompts.
MIN_STEP_TOKENS = 256
#: The fastest of so many recent steps counts: a pause between two makes a step look slow.
SAMPLES = 16


class ComputeRate:
    """Tokens per second of recent steps with a prompt in them."""

    def __init__(self) -> None:
        self._samples: deque[float] = deque(maxlen=SAMPLES)
        self._last: tuple[float, int] | None = None

    def step(self, tokens: int, now: float) -> None:
        """A step with ``tokens`` tokens begins at ``now``, in seconds that only grow."""
        if self._last is not None:
            began, computed = self._last
            if computed >= MIN_STEP_TOKENS and now > began:
                self._samples.append(computed / (now - began))
        self._last = now, tokens

    @property
    def tokens_per_second(self) -> float | None:
        """None as long as no prompt was computed."""
        return max(self._samples, default=None)
