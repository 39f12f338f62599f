# SPDX-License-Identifier: Apache-2.0
"""A witness of every transfer: what is loaded for a key must be what was stored for it.

Comparing answers cannot tell this in every situation: with preemption a hybrid model's tokens
differ from a solo run even without any cache. The bytes must be right all the same.
"""

import zlib
from collections.abc import Callable, Sequence
from typing import Any

from lab.engine import Engine

Key = bytes


class Witness:
    """Listens between tiercache's manager and its worker, both in this process.

    The two see each transfer's slots as the same object, which is how keys and bytes meet.
    """

    def __init__(self, engine: Engine) -> None:
        self.stored = 0
        self.loaded = 0
        self.wrong: list[Key] = []
        self._arena = engine.arena
        self._sums: dict[Key, set[int]] = {}
        """All that was ever stored: recomputed in other chunks, a block has other last bits."""
        self._transfers: dict[int, tuple[Any, list[Key]]] = {}
        manager, worker = engine.manager, engine.worker
        manager.prepare_store = self._after_prepare_store(manager.prepare_store)
        manager.prepare_load = self._after_prepare_load(manager.prepare_load)
        worker.submit_store = self._after_store(worker.submit_store)
        worker.submit_load = self._before_load(worker.submit_load)

    def take_wrong(self) -> list[Key]:
        """The keys whose bytes were wrong, for a test that expects it; they are forgotten."""
        wrong, self.wrong = self.wrong, []
        return wrong

    def _after_prepare_store(self, prepare: Callable[..., Any]) -> Callable[..., Any]:
        def prepare_store(keys: Sequence[Key], context: Any) -> Any:
            output = prepare(keys, context)
            if output is not None:
                self._expect(output.store_spec, output.keys_to_store)
            return output

        return prepare_store

    def _after_prepare_load(self, prepare: Callable[..., Any]) -> Callable[..., Any]:
        def prepare_load(keys: Sequence[Key], context: Any) -> Any:
            spec = prepare(keys, context)
            self._expect(spec, keys)
            return spec

        return prepare_load

    def _after_store(self, submit: Callable[..., bool]) -> Callable[..., bool]:
        def submit_store(job_id: int, source: Any, target: Any) -> bool:
            done = submit(job_id, source, target)
            for key, checksum in self._checksums(target):
                self._sums.setdefault(key, set()).add(checksum)
                self.stored += 1
            return done

        return submit_store

    def _before_load(self, submit: Callable[..., bool]) -> Callable[..., bool]:
        def submit_load(job_id: int, source: Any, target: Any) -> bool:
            for key, checksum in self._checksums(source):
                self.loaded += 1
                if checksum not in self._sums.get(key, ()):
                    self.wrong.append(key)
            return submit(job_id, source, target)

        return submit_load

    def _expect(self, spec: Any, keys: Sequence[Key]) -> None:
        if keys:  # vLLM drops an empty transfer
            self._transfers[id(spec)] = (spec, list(keys))

    def _checksums(self, spec: Any) -> list[tuple[Key, int]]:
        _, keys = self._transfers.pop(id(spec))
        return [
            (key, zlib.crc32(self._slot(key, slot)))
            for key, slot in zip(keys, spec.slots.tolist(), strict=True)
        ]

    def _slot(self, key: Key, slot: int) -> bytes:
        group_id = int.from_bytes(key[-4:], "big")
        content: bytes = self._arena.region(group_id)[slot].numpy().tobytes()
        return content
