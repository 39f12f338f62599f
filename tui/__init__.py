# SPDX-License-Identifier: Apache-2.0
"""The monitor: what a running cache holds, live or once.

One direction only: source -> snapshot -> feed -> view (pure: frame -> lines) -> screen.
"""
