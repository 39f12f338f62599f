# SPDX-License-Identifier: Apache-2.0
"""Secondary tiers: where blocks go on living when the primary tier has no slot left for them."""
