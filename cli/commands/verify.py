# SPDX-License-Identifier: Apache-2.0
"""``tiercache verify``: is a pool on disk as it should be, and can it be put right?

Covers the options and the report. What is looked at is ``tiercache.tiers.nvme.audit``'s, and how
it is put right ``repair``'s.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from tiercache.cli import output
from tiercache.cli.caring import (
    Progress,
    Share,
    agree,
    attempting,
    json_option,
    namespace_option,
    opened,
    pool_argument,
    progress_option,
    writing_options,
)
from tiercache.cli.diagnostics import ExitCode
from tiercache.cli.parameters import Size
from tiercache.cli.table import count, table
from tiercache.cli.table import size as sized

if TYPE_CHECKING:
    from tiercache.tiers.nvme.findings import Audit, Check, Finding
    from tiercache.tiers.nvme.offline import OfflineNamespace

SCHEMA: Final = "tiercache.verify/1"
#: Findings of one check that a table shows.
SHOWN: Final = 8

EXAMPLES = """\b
Exit codes:
  0  nothing is wrong, or all of it was put right
  1  something is wrong
  4  it is of another version          5  a server uses it, so --fix cannot
  6  it cannot be read, or not be put right

\b
Examples:
  tiercache verify /mnt/nvme/tiercache
  tiercache verify /mnt/nvme/tiercache --data --sample 1%
  tiercache verify /mnt/nvme/tiercache --data --fix --yes
  tiercache verify /mnt/nvme/tiercache --capacity 2TiB --json
"""


@click.command(epilog=EXAMPLES)
@pool_argument
@namespace_option
@click.option("--data", is_flag=True, help="Read all records and compare their checksums.")
@click.option(
    "--sample", type=Share(), metavar="SHARE", help="Read this share of the records, as 1%."
)
@click.option(
    "--capacity", type=Size(), metavar="SIZE", help="What the server may use: is it more?"
)
@click.option("--fix", is_flag=True, help="Remove what is damaged; keep everything else.")
@writing_options
@json_option
@progress_option
def verify(
    *,
    pool: Path,
    namespace: str | None,
    data: bool,
    sample: float | None,
    capacity: int | None,
    fix: bool,
    dry_run: bool,
    yes: bool,
    as_json: bool,
    progress: bool,
) -> int:
    """Look for damage in a pool on disk: index, files, entries, access and records.

    Nothing is changed without --fix, and a server that uses the pool does not wait. What a server
    replaces meanwhile is no damage.
    """
    from tiercache.tiers.nvme.audit import audit

    share = sample if sample is not None else float(data)
    shown = Progress("reading records", as_json=as_json, wanted=progress)
    with opened(pool, namespace) as namespaces:
        results = []
        for one in namespaces:
            found = audit(one, share=share, capacity=capacity, progress=shown)
            shown.end()
            results.append((one, found))
            one.close()
        if not as_json:
            _print(results, fix=fix)
        fixed = fix and not dry_run and _fix(results, yes=yes)
    if as_json:
        rows = [_document(one, found) for one, found in results]
        output.document({"schema": SCHEMA, "path": str(pool), "fixed": fixed, "data": rows})
    problems = sum(len(found.findings) for _, found in results)
    if not as_json:
        output.text(_summary(problems, fix=fix, fixed=fixed))
    left = any(one.remedy.name == "NONE" for _, found in results for one in found.findings)
    return ExitCode.PROBLEM if problems and (not fixed or left) else ExitCode.OK


def _fix(results: "Sequence[tuple[OfflineNamespace, Audit]]", *, yes: bool) -> bool:
    """Put everything right that has a remedy; whether there was something."""
    from tiercache.tiers.nvme.repair import repair, unblock
    from tiercache.tiers.nvme.writing import check_free, held

    damaged = [
        (one, [each for each in found.findings if each.remedy.name != "NONE"])
        for one, found in results
    ]
    damaged = [(one, findings) for one, findings in damaged if findings]
    if not damaged:
        return False
    for one, _ in damaged:
        check_free(one.directory)
    number = sum(len(findings) for _, findings in damaged)
    agree(f"Put {count(number)} problems right as above?", yes=yes)
    for one, findings in damaged:
        with attempting(f"the namespace {one.directory} cannot be repaired"):
            unblock(one.directory, findings)
            with held(one.directory):
                repair(one.directory, findings, segment_bytes=one.segment_bytes)
    return True


# --- the report


def _print(results: "Sequence[tuple[OfflineNamespace, Audit]]", *, fix: bool) -> None:
    for one, found in results:
        pid = one.pid
        user = "not in use" if pid is None else f"in use by pid {pid}" if pid else "in use"
        output.text(f"{one.name}  {one.model or 'unknown model'}  {user}")
        rows = [row for check in _checks() for row in _rows(check, found)]
        for line in table(("CHECK", "STATE", "WHAT"), rows, left=(0, 1, 2)):
            output.text(line)
        for finding in found.findings if fix else ():
            output.text(f"  --fix: {finding.remedy.value}: {finding.text}")
        output.text("")


def _checks() -> "Iterator[Check]":
    from tiercache.tiers.nvme.findings import Check

    return iter(Check)


def _rows(check: "Check", found: "Audit") -> Iterator[tuple[str, str, str]]:
    findings = found.of(check)
    if not findings:
        yield check.value, "-" if _skipped(check, found) else "ok", _fact(check, found)
    for finding in findings[:SHOWN]:
        yield check.value, "bad", finding.text
    if len(findings) > SHOWN:
        yield check.value, "bad", f"and {count(len(findings) - SHOWN)} more like these"


def _skipped(check: "Check", found: "Audit") -> bool:
    return check.value == "records" and not found.facts.read


def _fact(check: "Check", found: "Audit") -> str:
    """What there is to say of a check that found nothing."""
    facts = found.facts
    entries = count(sum(facts.entries.values()))
    by_group = ", ".join(f"g{group}: {count(n)}" for group, n in facts.entries.items())
    records = f"{count(facts.read)} of {entries} read, {sized(facts.read_bytes)}"
    texts = {
        "meta": "the namespace is what its fingerprint says",
        "orphans": "no file too many",
        "access": "for nobody else",
        "pages": "sealed",
        "files": f"{count(facts.segments)} segments, {sized(facts.segment_bytes)}",
        "index": f"{entries} entries in {count(facts.pages)} pages",
        "readers": f"{count(facts.readers)} read it now",
        "entries": by_group,
        "space": f"{sized(facts.occupied)} on disk, {sized(facts.record_bytes)} of it in records",
        "records": records if facts.read else "not read (--data, --sample 1%)",
    }
    return texts.get(check.value, "")


def _summary(problems: int, *, fix: bool, fixed: bool) -> str:
    if not problems:
        return "nothing is wrong"
    found = f"{count(problems)} problem{'s' if problems > 1 else ''}"
    if fixed:
        return f"{found} found and put right"
    return f"{found} found" if fix else f"{found} found; --fix puts them right"


def _document(one: "OfflineNamespace", found: "Audit") -> dict[str, Any]:
    facts = found.facts
    return {
        "namespace": one.name,
        "format": one.format,
        "pid": one.pid,
        "entries": {f"g{group}": n for group, n in facts.entries.items()},
        "pages": facts.pages,
        "readers": facts.readers,
        "segments": facts.segments,
        "segment_bytes": facts.segment_bytes,
        "record_bytes": facts.record_bytes,
        "occupied_bytes": facts.occupied,
        "records_read": facts.read,
        "records_read_bytes": facts.read_bytes,
        "findings": [_finding(each) for each in found.findings],
    }


def _finding(finding: "Finding") -> dict[str, Any]:
    return {
        "check": finding.check.value,
        "code": finding.code,
        "text": finding.text,
        "count": finding.count,
        "path": None if finding.path is None else str(finding.path),
        "remedy": None if finding.remedy.name == "NONE" else finding.remedy.value,
    }
