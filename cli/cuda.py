# SPDX-License-Identifier: Apache-2.0
"""A GPU's memory through the driver's own library: copies, and registering host memory.

Covers the first GPU, for measuring. Serving uses torch, which the commands do not load.
"""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from tiercache.errors import TierCacheError

LIBRARY: Final = "libcuda.so.1"


class Gpu:
    """The driver with the first GPU's primary context. Raises: TierCacheError for its codes."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library

    @contextmanager
    def allocated(self, nbytes: int) -> Iterator[int]:
        """Memory of the GPU: its address there."""
        device = ctypes.c_uint64()
        self._call("cuMemAlloc_v2", ctypes.byref(device), ctypes.c_size_t(nbytes))
        try:
            yield device.value
        finally:
            self._call("cuMemFree_v2", device)

    @contextmanager
    def registered(self, address: int, nbytes: int) -> Iterator[None]:
        """Pin host memory, so that the copy engines reach it by themselves."""
        host = ctypes.c_void_p(address)
        self._call("cuMemHostRegister_v2", host, ctypes.c_size_t(nbytes), ctypes.c_uint(0))
        try:
            yield
        finally:
            self._call("cuMemHostUnregister", host)

    def to_device(self, device: int, address: int, nbytes: int) -> None:
        host, size = ctypes.c_void_p(address), ctypes.c_size_t(nbytes)
        self._call("cuMemcpyHtoD_v2", ctypes.c_uint64(device), host, size)
        self._call("cuCtxSynchronize")  # a copy from pageable memory may return early

    def to_host(self, device: int, address: int, nbytes: int) -> None:
        host, size = ctypes.c_void_p(address), ctypes.c_size_t(nbytes)
        self._call("cuMemcpyDtoH_v2", host, ctypes.c_uint64(device), size)

    def _call(self, name: str, *arguments: object) -> None:
        call(self._library, name, *arguments)


@contextmanager
def opened(library: str = LIBRARY) -> Iterator[Gpu | None]:
    """The first GPU; None without a driver or a GPU."""
    try:
        driver = ctypes.CDLL(library)
        call(driver, "cuInit", ctypes.c_uint(0))
        device = ctypes.c_int()
        call(driver, "cuDeviceGet", ctypes.byref(device), ctypes.c_int(0))
    except (OSError, TierCacheError):
        yield None
        return
    context = ctypes.c_void_p()
    call(driver, "cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    try:
        call(driver, "cuCtxSetCurrent", context)
        yield Gpu(driver)
    finally:
        call(driver, "cuDevicePrimaryCtxRelease_v2", device)


def call(library: ctypes.CDLL, name: str, *arguments: object) -> None:
    """Call a function of the driver. Raises TierCacheError, which names it and its code."""
    code = getattr(library, name)(*arguments)
    if code:
        raise TierCacheError(f"the GPU's driver refuses: {name} says {code}")
