# SPDX-License-Identifier: Apache-2.0
"""The NVMe tier: blocks in preallocated segment files, found through an index in LMDB."""
