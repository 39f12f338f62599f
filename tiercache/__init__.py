# SPDX-License-Identifier: Apache-2.0
"""A tiered KV cache for vLLM."""

__version__ = "0.1.0.dev0"
