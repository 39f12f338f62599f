# SPDX-License-Identifier: Apache-2.0
"""One module per command; each is imported only when it runs."""
