# SPDX-License-Identifier: Apache-2.0
"""Our connector and our manager together under vLLM's scheduler, as its runner drives it.

Where a test tells the manager what to say, ours is asked and answers: a key is a hit if it was
stored. A test's stub still decides which keys are offered to ours at all.
"""

from collections.abc import Callable, Collection
from functools import partial
from importlib import import_module
from typing import Any
from unittest.mock import MagicMock

from vllm.distributed.kv_transfer.kv_connector.v1.offloading import config as offloading
from vllm.v1.kv_offload.base import LookupResult, OffloadKey, PrepareStoreOutput, ReqContext

from tiercache.cache import TieredCache
from tiercache.vllm.connector import TierCacheConnector
from tiercache.vllm.geometry import BLUEPRINT, Blueprint, make_blueprint
from tiercache.vllm.manager import TierCacheManager
from tiercache.vllm.spec import TierCacheSpec

from .connector import RUNNER, install_with

OURS = (TierCacheConnector, TieredCache)
#: Slots of each group: more than any of the tests stores.
SLOTS = 512
#: The last configuration that a spec was made from, for tests that make one without a connector.
_last: list[Any] = []


def install() -> None:
    build = offloading.build_offloading_config

    def remember(vllm_config: Any, kv_cache_config: Any) -> Any:
        _last[:] = [vllm_config, kv_cache_config]
        return build(vllm_config, kv_cache_config)

    offloading.build_offloading_config = remember
    install_with(overrule)


class Overruled(MagicMock):
    """A method that answers by itself; what a test wants it to answer is kept as its ``stub``."""

    @property
    def side_effect(self) -> Any:
        return self.__dict__.get("_answers")

    @side_effect.setter
    def side_effect(self, stub: Any) -> None:
        self.__dict__["_stub"] = stub

    def answer_with(self, answers: Callable[..., Any]) -> None:
        self.__dict__["_answers"] = answers

    @property
    def stub(self) -> Any:
        return self.__dict__["_stub"]


def overrule(spec: Any, _: MagicMock) -> None:
    """Equip the manager of ``spec`` with the methods of a real one."""
    blueprint = BLUEPRINT.get(None) or _blueprint()
    token = BLUEPRINT.set(blueprint)
    try:
        ours = TierCacheSpec(spec.config).get_manager()
    finally:
        BLUEPRINT.reset(token)
    assert isinstance(ours, TierCacheManager)
    spec.manager.ours = ours
    Overruling(spec.manager, ours)


def _blueprint() -> Blueprint:
    vllm_config, kv_cache_config = _last
    extra = vllm_config.kv_transfer_config.kv_connector_extra_config
    groups = range(len(kv_cache_config.kv_cache_groups))
    vllm_config.model_config.max_model_len = 4096
    extra |= {"cpu_bytes_to_use": "64MiB", "group_slots": dict.fromkeys(groups, SLOTS)}
    return make_blueprint(vllm_config, kv_cache_config)


class Overruling:
    """Hands every call on to ``ours``."""

    METHODS = (
        "begin_lookup",
        "complete_load",
        "complete_store",
        "end_lookup",
        "expect",
        "explain",
        "get_load_source",
        "get_stats",
        "has_pending_work",
        "on_new_request",
        "on_request_finished",
        "reset_cache",
        "served",
        "step",
        "take_events",
    )

    def __init__(self, manager: MagicMock, ours: TierCacheManager) -> None:
        self._manager, self._ours = manager, ours
        answers: dict[str, Callable[..., Any]] = {
            name: partial(self.ask, name) for name in self.METHODS
        }
        answers |= {
            "lookup": self.lookup,
            "prepare_load": self.prepare_load,
            "prepare_store": self.prepare_store,
        }
        for name, answer in answers.items():
            method = Overruled()
            method.answer_with(answer)
            setattr(manager, name, method)
        type(manager).is_waiting = property(lambda _: ours.is_waiting)

    def ask(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Let a stub take note of the call; ours answers."""
        stub = getattr(self._manager, name).stub
        if callable(stub):
            stub(*args, **kwargs)
        return getattr(self._ours, name)(*args, **kwargs)

    def lookup(self, key: OffloadKey, ctx: ReqContext) -> LookupResult:
        return self._ours.lookup(key, ctx)

    def prepare_load(self, keys: Collection[OffloadKey], ctx: ReqContext) -> Any:
        slots = self._ours.prepare_load(keys, ctx)
        assert len(slots.slots) == len(keys)
        return _by_key(keys)

    def prepare_store(self, keys: Collection[OffloadKey], ctx: ReqContext) -> Any:
        stub = self._manager.prepare_store.stub
        offered = stub(keys, ctx) if stub is not None else None
        if stub is not None and offered is None:
            return None
        output = self._ours.prepare_store(offered.keys_to_store if offered else keys, ctx)
        self._ours.cache.validate()
        if output is None:
            return None
        stored = output.keys_to_store
        return PrepareStoreOutput(stored, _by_key(stored), output.evicted_keys)


def _by_key(keys: Collection[OffloadKey]) -> Any:
    return vars(import_module(RUNNER))["MockLoadStoreSpec"](keys)
