# SPDX-License-Identifier: Apache-2.0
"""The page on conformance says what the tests expect."""

from tests.host.table import PAGE, RELEASE, RUNS, Verdict, page, suites


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text() == page(), "run: .venv/bin/python -m tests.host.table"


def test_the_page_names_the_release() -> None:
    assert f"vLLM {RELEASE}" in PAGE.read_text()


def test_what_is_expected_can_be_run() -> None:
    for suite in suites():
        assert suite.run in RUNS
        assert suite.of(Verdict.PASSES)
        assert all(test.cases > 0 for test in suite.tests.values())
        assert all(test.reason for test in suite.tests.values() if test.verdict != Verdict.PASSES)
