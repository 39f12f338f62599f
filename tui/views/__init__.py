# SPDX-License-Identifier: Apache-2.0
"""The five views, a module each, and the page of help.

Each has ``body`` (its lines below the header), ``rows`` (how many its list has), ``titles`` (of
the columns that the list can be sorted by), and ``selected`` (the row under the cursor to copy).
"""
