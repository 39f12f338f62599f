# SPDX-License-Identifier: Apache-2.0
import sys
from pathlib import Path

import pytest

from tiercache.errors import ConfigError, UnsupportedError
from tiercache.replay.plots import save_plot, text_plot
from tiercache.replay.report import Row


@pytest.fixture(scope="module")
def _matplotlib(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Skips without it; otherwise it has drawn once, as it keeps the fonts open for good."""
    pytest.importorskip("matplotlib", reason="pictures need the extra plot")
    for suffix in (".png", ".svg"):
        save_plot(ROWS, tmp_path_factory.mktemp("plots") / f"first{suffix}")


def row(trace: str, policy: str, state_slots: int, share: float, token_slots: int = 500) -> Row:
    return Row(
        trace=trace,
        policy=policy,
        block_tokens=16,
        token_slots=token_slots,
        state_slots=state_slots,
        requests=1,
        prompt_tokens=1000,
        restored_tokens=round(1000 * share),
        restored_share=share,
        evicted_live=0,
        evicted_demoted=0,
        demotions=0,
        stranded_tokens=0,
        seconds=1.0,
    )


ROWS = [
    row("t", "lru", 16, 0.5),
    row("t", "lru", 30, 0.75),
    row("t", "lru-plain", 16, 0.25),
    row("t", "lru-plain", 30, 0.75),
]


def test_text() -> None:
    assert text_plot(ROWS, width=37, height=5).splitlines() == [
        "t: prompt tokens restored, over state slots per group",
        " 75 % |                      =",
        "      |",
        " 50 % |       o",
        "      |",
        " 25 % |       x",
        "      +------------------------------",
        "             16             30",
        "       o lru   x lru-plain   = several",
    ]


def test_text_of_several_traces_one_below_the_other() -> None:
    drawn = text_plot([*ROWS, row("u", "lru", 0, 0.5, token_slots=64)])
    above, below = drawn.split("\n\n")
    assert above.startswith("t: ")
    assert below.startswith("u: prompt tokens restored, over token slots\n")
    assert below.endswith("o lru")
    assert max(map(len, above.splitlines())) <= 72


def test_sizes_out_of_step_have_a_panel_for_each_number_of_token_slots() -> None:
    sizes = ((500, 8), (1000, 8), (1000, 16))
    rows = [row("t", "lru", states, 0.5, token_slots=tokens) for tokens, states in sizes]
    heads = [panel.splitlines()[0] for panel in text_plot(rows).split("\n\n")]
    assert heads == [
        f"t: prompt tokens restored, over state slots per group, with {tokens} token slots"
        for tokens in ("500", "1,000")
    ]


def test_text_with_more_sizes_than_columns() -> None:
    rows = [row("t", "lru", size, 0.5) for size in range(1, 200)]
    assert all(len(line) <= 40 for line in text_plot(rows, width=40).splitlines()[1:])


def test_text_of_nothing() -> None:
    assert text_plot([]) == ""


@pytest.mark.usefixtures("_matplotlib")
@pytest.mark.parametrize(("name", "begins"), [("a.png", b"\x89PNG"), ("a.SVG", b"<?xml")])
def test_a_picture(tmp_path: Path, name: str, begins: bytes) -> None:
    path = tmp_path / name
    save_plot([*ROWS, row("u", "lru", 0, 0.5)], path)
    drawn = path.read_bytes()
    assert drawn.startswith(begins)
    assert b"Matplotlib v" not in drawn
    save_plot([*ROWS, row("u", "lru", 0, 0.5)], path)
    assert path.read_bytes() == drawn


@pytest.mark.usefixtures("_matplotlib")
def test_an_svg_names_what_it_shows(tmp_path: Path) -> None:
    save_plot(ROWS, tmp_path / "a.svg")
    drawn = (tmp_path / "a.svg").read_text()
    assert all(f">{name}</text>" in drawn for name in ("lru", "lru-plain", "30"))


def test_no_picture_of_another_kind(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"\.png or \.svg"):
        save_plot(ROWS, tmp_path / "a.pdf")


def test_without_matplotlib_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UnsupportedError, match=r"tiercache-kv\[plot\]"):
        save_plot(ROWS, tmp_path / "a.png")
