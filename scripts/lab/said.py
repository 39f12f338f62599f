# SPDX-License-Identifier: Apache-2.0
"""What a model said, and when two answers say the same."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

#: Tokens whose log-probabilities differ by less are as likely, in the models' 16 bits.
TIE: Final = 0.1
#: Tokens whose probabilities are kept at each choice.
CHOICES: Final = 5


@dataclass(frozen=True, slots=True)
class Said:
    """A greedy answer; ``choices``: at each token, the likeliest and their log-probabilities."""

    tokens: tuple[int, ...]
    choices: tuple[Mapping[int, float], ...]

    def agrees(self, other: "Said") -> bool:
        """Whether both say the same, up to a choice between two tokens that are as likely.

        What is computed in other parts, as the rest of a prompt is after a restore, has other last
        bits, and which of two tokens wins then depends on the processor. What they say after that
        is not compared.
        """
        pairs = zip(self.tokens, other.tokens, strict=False)
        at = next((at for at, (one, two) in enumerate(pairs) if one != two), None)
        if at is None:
            return len(self.tokens) == len(other.tokens)
        one, two = self.tokens[at], other.tokens[at]
        return all(
            abs(choices[at].get(one, -math.inf) - choices[at].get(two, math.inf)) < TIE
            for choices in (self.choices, other.choices)
        )
