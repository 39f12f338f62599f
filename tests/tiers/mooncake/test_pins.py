# SPDX-License-Identifier: Apache-2.0
"""What several conversations go on from outlives the rest in the store."""

import mmap
from functools import partial

from lab.store import machine
from tests import mooncake_helpers
from tests.core_helpers import key
from tests.mooncake_helpers import MIB, Lent, Server, raw_store, until
from tests.tiers.mooncake.conftest import Serve
from tiercache.blocks import Key
from tiercache.tiers.mooncake.client import Client

FORK, OTHER = key("fork", 5), key("other", 5)
#: Bytes of the store, which is then offered twice as many.
STORE_BYTES = 16 * MIB


def store_forks(server: Server, keys: list[Key], forks: list[Key]) -> bool:
    batch = server.batch(keys, 0)._replace(forks=forks)
    for each, slot in zip(batch.keys, batch.slots, strict=True):
        server.slots.write(each, slot)
    taken = server.tier.store(batch)
    until(lambda: bool(server.tier.poll()))
    return taken and all(map(server.tier.has, keys))


def test_a_fork_outlives_what_was_stored_after_it(raw: object, serve: Serve) -> None:
    with mooncake_helpers.master() as running, machine(running, STORE_BYTES):
        store = raw_store(running.address)
        server = serve(store, name="forks")
        until(lambda: store_forks(server, [OTHER, FORK], [FORK]))
        client = Lent(store)
        filler = memoryview(mmap.mmap(-1, MIB // 4))
        client.register(filler)
        for number in range(2 * STORE_BYTES // filler.nbytes):
            until(partial(_put, client, f"filler {number}", filler))
        names = [f"{server.tier._space}/{each.hex()}" for each in (OTHER, FORK)]
        assert client.exist(names) == [0, 1]
        server.tier.close()
        client.close()
        store.close()


def _put(client: Client, name: str, part: memoryview) -> bool:
    return client.put([name], [[part]]) == [0]
