# SPDX-License-Identifier: Apache-2.0
"""Watches a cache and publishes what it sees."""
