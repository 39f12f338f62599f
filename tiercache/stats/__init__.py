# SPDX-License-Identifier: Apache-2.0
"""What a cache publishes about itself: a shared-memory segment, its writer and its readers."""
