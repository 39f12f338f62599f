# SPDX-License-Identifier: Apache-2.0
"""What is loaded into other processes only."""

collect_ignore = ["adapters", "nobuild"]
