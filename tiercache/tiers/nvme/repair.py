# SPDX-License-Identifier: Apache-2.0
"""Putting right what an audit found: what is damaged goes, everything else stays.

Covers the remedies; what needs one is ``audit``'s. The caller holds the namespace.
"""

import json
import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

import lmdb

from tiercache.errors import DamageError
from tiercache.tiers.nvme.audit import audit
from tiercache.tiers.nvme.findings import Audit, Finding, Remedy
from tiercache.tiers.nvme.namespace import INDEX, LOCK, META, read_meta, write_whole
from tiercache.tiers.nvme.offline import OfflineNamespace
from tiercache.tiers.nvme.tree import group_of
from tiercache.tiers.nvme.writing import cut, index_of

#: To put one thing right may show the next: a file that is removed has entries.
_ROUNDS: Final = 5


def unblock(directory: Path, findings: Iterable[Finding]) -> None:
    """Remove what is in the place of the lock, but no lock: nobody can hold it. Raises OSError."""
    for finding in findings:
        if finding.remedy is Remedy.REMOVE and finding.path == directory / LOCK:
            remove(finding.path)


def repair(directory: Path, findings: Sequence[Finding], *, segment_bytes: int) -> Audit:
    """Apply the remedies of ``findings``, and of what comes to light by it; what is left then.

    Only findings without a remedy are left. Raises DamageError for what cannot be put right.
    """
    found = OfflineNamespace(directory, segment_bytes=segment_bytes)
    for _ in range(_ROUNDS):
        try:
            _apply(directory, findings)
            found = OfflineNamespace(directory, segment_bytes=segment_bytes)
            left = audit(found)
        except (OSError, lmdb.Error) as error:
            text = f"the namespace {directory} cannot be repaired: {error}"
            raise DamageError(text) from error
        finally:
            found.close()
        findings = [one for one in left.findings if one.remedy is not Remedy.NONE]
        if not findings:
            return left
    text = "; ".join(one.text for one in findings)
    raise DamageError(f"the namespace {directory} is damaged beyond repair: {text}")


def _apply(directory: Path, findings: Iterable[Finding]) -> None:
    by_remedy: dict[Remedy, list[Finding]] = {}
    for finding in findings:
        by_remedy.setdefault(finding.remedy, []).append(finding)
    for remedy, act in _ON_FILES.items():
        for finding in by_remedy.get(remedy, ()):
            assert finding.path is not None
            # What a remedy for the whole namespace has removed needs none of its own.
            if remedy in _WHOLE or os.path.lexists(finding.path):
                act(directory, finding)
    if _WHOLE.isdisjoint(by_remedy):
        _change_index(directory, by_remedy)


def _change_index(directory: Path, by_remedy: dict[Remedy, list[Finding]]) -> None:
    entries, pages = by_remedy.get(Remedy.ENTRIES, []), by_remedy.get(Remedy.PAGES, [])
    if not (entries or pages or Remedy.READERS in by_remedy):
        return
    removed = [key for finding in pages for key in finding.keys]
    with index_of(directory) as index:
        index.free_readers()
        changes = dict.fromkeys(at for finding in entries for at in finding.locations)
        index.change(changes, removed=removed)


def _remove(_: Path, finding: Finding) -> None:
    assert finding.path is not None
    remove(finding.path)


def remove(path: Path) -> None:
    """Remove a file, a link or a directory with all that is in it."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _set_mode(_: Path, finding: Finding) -> None:
    assert finding.path is not None
    finding.path.chmod(finding.number)


def _set_owner(directory: Path, finding: Finding) -> None:
    assert finding.path is not None
    os.lchown(finding.path, finding.number, directory.stat().st_gid)


def _cut(_: Path, finding: Finding) -> None:
    assert finding.path is not None
    cut(finding.path, finding.number)


def _rewrite_meta(directory: Path, _: Finding) -> None:
    meta = read_meta(directory)
    assert meta is not None
    write_whole(directory / META, json.dumps(meta, indent=2) + "\n")


def _clear(directory: Path, _: Finding) -> None:
    """Remove what is indexed, and the index; the namespace begins anew."""
    for path in list(directory.iterdir()):
        if path.name == INDEX or group_of(path.name) is not None:
            remove(path)


def _empty(directory: Path, _: Finding) -> None:
    """Remove everything but the lock, which we hold."""
    for path in list(directory.iterdir()):
        if path.name != LOCK:
            remove(path)


_WHOLE: Final = frozenset({Remedy.EMPTY, Remedy.CLEAR})
_ON_FILES: Final[dict[Remedy, Callable[[Path, Finding], None]]] = {
    Remedy.EMPTY: _empty,
    Remedy.CLEAR: _clear,
    Remedy.META: _rewrite_meta,
    Remedy.REMOVE: _remove,
    Remedy.OWNER: _set_owner,
    Remedy.MODE: _set_mode,
    Remedy.CUT: _cut,
}
