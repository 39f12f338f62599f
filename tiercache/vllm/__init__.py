# SPDX-License-Identifier: Apache-2.0
"""tiercache inside vLLM: the only place that knows vLLM, and nothing else imports it."""
