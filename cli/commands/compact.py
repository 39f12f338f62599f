# SPDX-License-Identifier: Apache-2.0
"""``tiercache compact``: give back what a pool occupies and no entry needs."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from tiercache.cli import diagnostics, output
from tiercache.cli.caring import (
    agree,
    attempting,
    json_option,
    namespace_option,
    opened,
    pool_argument,
    writing_options,
)
from tiercache.cli.table import count, size

if TYPE_CHECKING:
    from tiercache.tiers.nvme.offline import OfflineNamespace
    from tiercache.tiers.nvme.reclaim import Step

SCHEMA: Final = "tiercache.compact/1"

EXAMPLES = """\b
Examples:
  tiercache compact /mnt/nvme/tiercache -n
  tiercache compact /mnt/nvme/tiercache --yes --json
"""


@click.command(epilog=EXAMPLES)
@pool_argument
@namespace_option
@writing_options
@json_option
def compact(*, pool: Path, namespace: str | None, dry_run: bool, yes: bool, as_json: bool) -> None:
    """Rewrite the index without free pages, and give back the space of slots that nobody has.

    No entry goes. Segments without entries are removed, others are cut behind their last entry and
    get holes before it. A server allocates the space again when it writes.
    """
    with opened(pool, namespace) as namespaces:
        plans = [_plan(one) for one in namespaces]
        if not as_json:
            for plan in plans:
                output.text(_line(plan))
        if not dry_run:
            agree("Give this space back?", yes=yes)
            for one, plan in zip(namespaces, plans, strict=True):
                with attempting(f"the namespace {one.directory} cannot be compacted"):
                    plan["freed_bytes"] = _compact(one)
                if not as_json:
                    output.text(f"{one.name}  freed {size(plan['freed_bytes'])}")
    if as_json:
        document = {"schema": SCHEMA, "path": str(pool), "dry_run": dry_run, "data": plans}
        output.document(document)


def _plan(one: "OfflineNamespace") -> dict[str, Any]:
    from tiercache.tiers.nvme.reclaim import Way, read_entries, steps
    from tiercache.tiers.nvme.writing import check_free

    check_free(one.directory)
    planned = steps(one, read_entries(one))
    info = one.index.info() if one.indexed else None
    one.close()
    return {
        "namespace": one.name,
        "segments_removed": sum(step.way is Way.REMOVE for step in planned),
        "segments_shrunk": sum(step.way is Way.SHRINK for step in planned),
        "segment_bytes": sum(step.nbytes for step in planned),
        "index_bytes": info.free_pages * info.page_bytes if info else 0,
        "freed_bytes": None,
    }


def _line(plan: dict[str, Any]) -> str:
    return (
        f"{plan['namespace']}  segments: remove {count(plan['segments_removed'])}, shrink "
        f"{count(plan['segments_shrunk'])}, {size(plan['segment_bytes'])}; "
        f"index: {size(plan['index_bytes'])}"
    )


def _compact(one: "OfflineNamespace") -> int:
    """Do it, from what is there once nobody else can change it; bytes that it freed."""
    from tiercache.tiers.nvme.writing import held

    with held(one.directory):
        before = one.nbytes
        shrink(one)
        return before - one.nbytes


def shrink(one: "OfflineNamespace") -> "list[Step]":
    """Compact a namespace that is held. Raises OSError, lmdb.Error."""
    from tiercache.tiers.nvme.reclaim import carry_out, read_entries, steps
    from tiercache.tiers.nvme.writing import index_of

    planned = steps(one, read_entries(one))
    one.close()
    if not carry_out(planned):
        text = "this file system has no holes: only whole segments and their ends were given back"
        diagnostics.warning(text)
    if one.indexed:
        with index_of(one.directory) as index:
            index.compact()
    return planned
