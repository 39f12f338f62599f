# SPDX-License-Identifier: Apache-2.0
"""The lab: tiny models, a real vLLM in this process, and the scenarios played on both.

Used by the demo and by the end-to-end tests; not part of the installed package.
"""
