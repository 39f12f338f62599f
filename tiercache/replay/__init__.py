# SPDX-License-Identifier: Apache-2.0
"""Replay: real and made traces played through the cache that serves, without an engine."""
