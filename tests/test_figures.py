"""Figures: each is drawn, has words for who cannot see it, and shows what it was given."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

import dpcourse as dc
from dpcourse import figures
from dpcourse.equivalence import Difference
from dpcourse.figures import canvas
from dpcourse.ledger import OWNERS, Moment, total
from dpcourse.ranks.links import Links
from dpcourse.tables import bytes_text


@pytest.fixture(scope="module")
def runs():
    return [dc.train("single", model="mlp"), dc.train("ddp", model="mlp", ranks=2)]


@pytest.mark.parametrize("part", ["memory", "traffic", "timeline"])
def test_each_part_of_a_run_is_drawn_with_words(runs, part):
    for run in runs:
        figure = getattr(run, part).plot()
        assert figure.png().startswith(b"\x89PNG")
        html = figure.to_html()
        assert f'alt="{figure.alt[:20]}' in html
        assert "<figcaption>" in html
        assert run.title in figure.title


@pytest.mark.parametrize("part", ["traffic", "timeline"])
def test_a_picture_without_its_title_says_what_was_emulated(runs, part):
    emulated = replace(runs[1], links=Links("paced", 2, 1, 12.5e6, None), pace_compute=5e-3)
    assert "paced links, paced computation" in _drawn(getattr(emulated, part).plot()).get_xlabel()
    assert "paced" not in _drawn(getattr(runs[1], part).plot()).get_xlabel()


def test_words_carry_the_measured_numbers(runs):
    gradients = bytes_text(total(runs[1].memory.measured, owner="gradients", phase="backward", rank=0))
    assert f"end of backward: parameters {gradients}, gradients {gradients}" in runs[1].memory.plot().alt
    assert "20.00 bytes held" in dc.compare(runs).plot().alt
    assert "16.00 bytes held" in dc.compare(runs).plot().alt


def _drawn(figure: canvas.Figure):
    return figure.draw().axes[0]


def test_bars_are_as_long_as_what_they_stand_for(runs):
    run = runs[1]
    ax = _drawn(run.memory.plot())
    ends = {}
    for bar in ax.patches:
        if bar.get_fill():
            row = round(bar.get_y() + bar.get_height() / 2)
            ends[row] = max(ends.get(row, 0), bar.get_x() + bar.get_width())
    held = sum(h.num_bytes for h in run.memory.measured if (h.rank, h.phase) == (0, "backward"))
    assert ends[1] * 1e6 == pytest.approx(held, rel=1e-6)


def test_no_two_things_of_a_comparison_share_a_colour_and_each_is_in_the_legend(runs):
    drawn = dc.compare(runs).plot().draw()
    solid = {bar.get_facecolor() for ax in drawn.axes for bar in ax.patches if bar.get_fill()}
    [legend] = drawn.legends
    patches = zip(legend.texts, legend.get_patches(), strict=True)
    names = {text.get_text(): patch.get_facecolor() for text, patch in patches}
    assert set(names) == {"parameters", "gradients", "optimizer", "buckets", "sent"}
    assert len(set(names.values())) == 5
    assert solid == set(names.values())


def test_memory_over_time_marks_phases_and_the_peak_with_its_value(runs):
    for run in runs:
        moments = run.memory.over_time()
        peak = max(moment.total_bytes for moment in moments)
        held = sum(h.num_bytes for h in run.memory.measured if (h.rank, h.phase) == (0, "peak"))
        assert peak == held
        figure = run.memory.plot_over_time()
        assert figure.png().startswith(b"\x89PNG")
        assert bytes_text(peak) in figure.alt
        ax = _drawn(figure)
        assert {"forward", "backward", "step", f"peak {bytes_text(peak)}"} == {t.get_text() for t in ax.texts}
        assert len(ax.collections) == len({owner for moment in moments for owner in moment.num_bytes})
        assert max(
            area.get_paths()[0].vertices[:, 1].max() for area in ax.collections
        ) * 1e6 == pytest.approx(peak)


def test_a_phase_too_short_for_its_name_keeps_it_within_the_figure():
    moments = [Moment(0, "forward", {"parameters": 5}), Moment(1e-3, "forward", {"parameters": 9})]
    moments += [Moment(0.1, "backward", {"parameters": 5}), Moment(0.101, "step", {"parameters": 5})]
    part = SimpleNamespace(
        over_time=lambda rank: moments, run=SimpleNamespace(world_size=1, title="a run", is_trained=True)
    )
    figure = figures.memory_over_time(part)
    sides = {text.get_text(): text.get_ha() for text in _drawn(figure).texts}
    assert (sides["forward"], sides["backward"], sides["step"]) == ("left", "center", "right")
    empty = SimpleNamespace(over_time=lambda rank: [], run=part.run)
    assert figures.memory_over_time(empty).png().startswith(b"\x89PNG")
    assert "No moments were recorded" in figures.memory_over_time(empty).alt


def test_the_peak_s_table_leaves_nothing_out(runs):
    run = runs[1]
    table = run.memory.peak_table()
    rows = {row[0]: index for index, row in enumerate(table.rows)}
    held = sum(h.num_bytes for h in run.memory.measured if (h.rank, h.phase) == (0, "peak"))
    assert table.rows[rows["in all"]][1] == bytes_text(held)
    owners = [index for name, index in rows.items() if name in OWNERS]
    assert sum(table.number(index, "share") for index in owners) == pytest.approx(100, abs=0.4)
    named, unnamed = (
        table.number(rows[f"of which {what}"], "share") for what in ("named", "without an owner")
    )
    assert named + unnamed == pytest.approx(100, abs=0.2)
    assert named > 80


def test_the_process_s_table_has_a_sentence_for_each_count(runs):
    table = runs[1].memory.process_table()
    assert len(table.rows) == 1 + len(runs[1].records[0].process)
    assert all(row[2].endswith(".") for row in table.rows)


def test_a_difference_of_nothing_is_left_out_and_others_are_drawn():
    same = Difference("same", (0.0, 0.0))
    ax = _drawn(figures.difference_lines([same, Difference("off", (0.0, 1e-3))]))
    assert ax.get_yscale() == "log"
    assert [line.get_ydata()[1] for line in ax.lines[1:2]] == [1e-3]


def test_the_reference_configuration_shows_titles_only(runs, monkeypatch):
    monkeypatch.setenv("DPCOURSE_REFERENCE", "1")
    figure = runs[1].memory.plot()
    assert figure._repr_mimebundle_() == {"text/plain": f"[figure] {figure.title}"}


def test_a_prediction_judges_the_guess():
    right = dc.predict("bytes sent", guess=1.5, formula=1.5, measured=1.5003)
    assert right.is_right
    assert not dc.predict("bytes sent", guess=2, formula=1.5, measured=1.5003).is_right
    assert "1.33 times" in str(dc.predict("bytes sent", guess=2, measured=1.5003))
    assert (
        dc.predict("error", guess=1, measured=3e-8).verdict
        == "your guess is over 100 times what was measured"
    )
    assert dc.predict("ranks", guess=1, formula=2).verdict == "your guess is 0.50 times the formula"
    assert dc.predict("calls", guess=None, measured=2).verdict == "no guess"
    assert dc.predict("calls", guess=3, measured=0).verdict == "the right answer is 0"
    assert right.plot().png().startswith(b"\x89PNG")
    assert "<img" in right.to_html()


def test_a_guess_that_is_no_number_is_refused():
    with pytest.raises(TypeError, match=r"guess='1.5': write a number, such as guess=1.5"):
        dc.predict("bytes sent", guess="1.5")


def test_a_question_that_is_no_text_is_refused():
    with pytest.raises(TypeError, match=r"question=1\.0: write what was asked first: dc\.predict\("):
        dc.predict(1.0, 2.0)
