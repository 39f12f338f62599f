# SPDX-License-Identifier: Apache-2.0
"""Why there is no snapshot."""

from enum import StrEnum

from tiercache.errors import TierCacheError


class Trouble(StrEnum):
    """What kind of failure it was."""

    NO_POOL = "no pool"
    """There is nothing to look at yet; the message says where it would be."""
    UNREACHABLE = "unreachable"
    """Nothing listens there, or it hung up."""
    NO_ANSWER = "no answer"
    """Something listens, but has not answered in time."""
    BAD_ANSWER = "bad answer"
    """It answered something else than a metrics page, or numbers that make no sense."""
    NO_TIERCACHE = "no tiercache"
    """It answered a metrics page without one metric of ours."""
    FORMAT = "format"
    """A file of another version, or none of ours."""
    ENDED = "ended"
    """The recording has no more."""


class SourceError(TierCacheError):
    """No snapshot could be had; ``trouble`` says of which kind, the message says why."""

    def __init__(self, trouble: Trouble, message: str) -> None:
        self.trouble = trouble
        super().__init__(message)
