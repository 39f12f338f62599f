# SPDX-License-Identifier: Apache-2.0
"""vLLM's own tests on ours: each ends as ``expected`` says, and none is missing there.

They come with vLLM's source distribution. Where that cannot be had, as without a network, they
are skipped.
"""

import pytest

pytest.importorskip("vllm", reason="its tests are run")

from tests.host.runs import Result, results
from tests.host.sdist import NoSdistError, host_tests, host_version
from tests.host.table import RELEASE, Expected, Suite, Verdict, files_apart, suites

SUITES = suites()
#: The first test of a run waits for all of it.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(autouse=True, scope="module")
def _tests_are_there() -> None:
    try:
        version = host_version()
        if version != RELEASE:
            pytest.skip(f"the expectations are for vLLM {RELEASE}; {version} is installed")
        host_tests()
    except NoSdistError as error:
        pytest.skip(str(error))


def _cases(suite: Suite, name: str) -> list[Result]:
    found = results(suite.run)[suite.name]
    return [result for case, result in found.items() if suite.named(case) == name]


@pytest.mark.parametrize(
    ("suite", "expected"),
    [
        pytest.param(suite, expected, id=f"{suite.name}:{expected.name}")
        for suite in SUITES
        for expected in suite.tests.values()
        if expected.verdict is not Verdict.APART
    ],
)
def test_ends_as_expected(suite: Suite, expected: Expected) -> None:
    cases = _cases(suite, expected.name)
    assert len(cases) == expected.cases
    if expected.verdict is Verdict.PASSES:
        assert [case for case in cases if case.outcome != "passed"] == []
        assert all(case.made for case in cases), "it passes without anything of ours"
    else:
        ended = {case.outcome for case in cases}
        assert ended == {"failed"}, f"no longer true: {expected.reason}"


@pytest.mark.parametrize("suite", SUITES, ids=lambda suite: suite.name)
def test_every_test_is_expected(suite: Suite) -> None:
    found = {suite.named(case) for case in results(suite.run)[suite.name]}
    assert found == {
        test.name for test in suite.tests.values() if test.verdict is not Verdict.APART
    }


def test_every_file_is_expected() -> None:
    root = host_tests() / "tests" / "v1"
    known = {suite.file for suite in SUITES} | files_apart().keys()
    assert {str(path.relative_to(root)) for path in root.rglob("test_*.py")} == known
