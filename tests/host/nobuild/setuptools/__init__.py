# SPDX-License-Identifier: Apache-2.0
"""Stands in for the build tool while a source distribution is downloaded; see `tests.host.sdist`.

Nothing is built: ``build_meta`` answers the one question that the installer has.
"""
