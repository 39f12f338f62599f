# SPDX-License-Identifier: Apache-2.0
"""The ``tiercache`` command."""
