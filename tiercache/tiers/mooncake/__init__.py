# SPDX-License-Identifier: Apache-2.0
"""A tier in a Mooncake store: the memory of many machines, shared by the servers of a fleet."""
