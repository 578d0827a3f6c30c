"""Widgets without a browser: one picture that follows the controls, and in a batch run the picture alone."""

import contextlib
import json
import queue
import threading
from concurrent.futures import ThreadPoolExecutor

import nbformat
import pytest
import torch
from nbformat.v4 import new_code_cell, new_notebook

import dpcourse as dc
from dpcourse import widgets
from dpcourse.figures import tree
from dpcourse.figures.canvas import Figure
from dpcourse.planning.decision import TREE
from dpcourse.scratch import ring as scratch_ring
from dpcourse.theory import ring
from dpcourse.widgets.controls import choice, number, set_high, tick
from dpcourse.widgets.panel import Panel
from dpcourse.widgets.split import cut

pytestmark = pytest.mark.long

EVERY = sorted(widgets.__all__)
STATE_BYTES = 30_000  # of the widgets' state of one panel, which a batch run may keep in the notebook


class Cell:
    """What a cell shows: the pictures in its places, and the bundles beside them."""

    def __init__(self):
        self.places, self.bundles = {}, []

    def display(self, thing, display_id=None, raw=False):
        if raw:
            self.bundles.append(thing)
        else:
            self.places[display_id] = thing

    def update(self, thing, display_id):
        assert display_id in self.places  # else JupyterLab would show nothing
        self.places[display_id] = thing

    @property
    def pictures(self):
        return list(self.places.values())


@pytest.fixture
def cell(monkeypatch):
    from IPython import display

    shown = Cell()
    monkeypatch.setattr(display, "display", shown.display)
    monkeypatch.setattr(display, "update_display", shown.update)
    return shown


def shown(panel, cell):
    panel._ipython_display_()
    return panel


# -- every widget ----------------------------------------------------------------


@pytest.fixture(params=[name for name in EVERY if name != "bucket_slider"])  # test_widget_buckets.py has it
def panel(request, cell):
    return shown(getattr(widgets, request.param)(), cell)


def test_the_first_state_is_one_picture_without_a_click(panel, cell):
    [picture] = cell.pictures
    assert isinstance(picture, Figure)
    assert f'alt="{picture.alt[:10]}' in picture.to_html()


def test_every_control_has_a_name_and_changes_the_one_picture(panel, cell):
    first = panel.picture
    for control in reversed(panel.controls.values()):  # of boxes the last are not ticked yet
        assert control.name == control.field.description != ""
        before = panel.picture
        _move(control)
        assert cell.pictures == [panel.picture], control.name
        assert panel.picture is not before, control.name
    assert panel.picture.png() != first.png()
    assert all(button.description for button in panel.buttons)


def _move(control):
    field = control.field
    if hasattr(field, "options"):
        field.index = (field.index + 1) % len(field.options)
    elif isinstance(field.value, bool):
        field.value = not field.value
    else:
        field.value += 1 if field.value < field.max else -1


def test_a_front_end_without_widgets_reads_their_names(panel, cell):
    [bundle] = cell.bundles
    assert all(control.name in bundle["text/plain"] for control in panel.controls.values())
    assert str(panel.picture) in repr(panel)


@pytest.mark.parametrize("name", EVERY)
def test_the_reference_configuration_shows_the_picture_alone(name, monkeypatch, cell):
    monkeypatch.setenv("DPCOURSE_REFERENCE", "1")
    picture = getattr(widgets, name)()
    assert isinstance(picture, Figure)
    assert picture._repr_mimebundle_() == {"text/plain": f"[figure] {picture.title}"}
    assert not cell.places


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """A notebook with every widget, as papermill leaves it."""
    import papermill

    folder = tmp_path_factory.mktemp("batch")
    cells = [f"from dpcourse.widgets import {name}\n{name}()" for name in EVERY]
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    nbformat.write(new_notebook(cells=[*map(new_code_cell, cells)], metadata=kernel), folder / "in.ipynb")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JUPYTER_PREFER_ENV_PATH", "1")
        return papermill.execute_notebook(
            str(folder / "in.ipynb"), str(folder / "out.ipynb"), progress_bar=False, execution_timeout=60
        )


def test_a_batch_run_ends_with_one_picture_a_cell(ran):
    for one in ran.cells:
        assert one.execution_count
        pictures = [out for out in one.outputs if "<figure" in out.get("data", {}).get("text/html", "")]
        assert len(pictures) == 1, one.source


def test_a_page_of_it_has_the_pictures_with_their_words(ran):
    from nbconvert import HTMLExporter

    saved = nbformat.from_dict(ran)
    saved.metadata.pop("widgets", None)  # as JupyterLab saves it
    page, _ = HTMLExporter().from_notebook_node(saved)
    assert page.count("<figure") == page.count('<img alt="') == len(EVERY)
    assert page.count("[controls, where a notebook runs:") == len(EVERY)
    assert "widget-view+json" not in page


def test_the_state_of_widgets_does_not_bloat_the_notebook(ran):
    state = ran.metadata.widgets["application/vnd.jupyter.widget-state+json"]["state"]
    assert "image/png" not in json.dumps(state)  # pictures would be kept twice
    assert 0 < len(json.dumps(state)) < STATE_BYTES * len(EVERY)
    looks = [
        each["model_name"] for each in state.values() if each["model_name"].endswith(("Layout", "Style"))
    ]
    assert len(looks) == len({(name, json.dumps(each["state"])) for name, each in _looks(state)})


def _looks(state):
    return [(e["model_name"], e) for e in state.values() if e["model_name"].endswith(("Layout", "Style"))]


# -- controls and panels ---------------------------------------------------------


def test_slider_and_number_move_together_and_stay_in_range():
    control = number("Ranks", 4, 2, 16)
    text, slider = control.row.children
    slider.value = 7
    assert control.value == 7
    control.field.value = 99
    assert slider.value == 16
    assert slider.tabbable is False  # passed over: the number beside it has the name
    assert text.description == "Ranks"
    assert slider.continuous_update is False


def test_a_doubling_slider_reaches_the_ends_and_leaves_typed_numbers_alone():
    control = number("Hosts", 64, 1, 1000, is_doubling=True)
    _, slider = control.row.children
    assert slider.value == 6
    slider.value = slider.max
    assert control.value == 1000
    control.field.value = 100
    assert (control.value, slider.value) == (100, 7)
    slider.value = 0
    assert control.value == 1


def test_a_lowered_end_takes_the_value_with_it():
    control = number("Step", 6, 0, 6)
    set_high(control, 2)
    assert [each.value for each in control.row.children] == [2, 2]


def test_errors_stand_in_words_in_the_panel_and_the_next_move_takes_them_away(cell):
    def draw(value, is_good):
        if not is_good:
            raise ValueError("value=3: give <another>")
        return cut(4, 10 // value)

    panel = shown(
        Panel(draw, {"value": choice("Value", {"3": 3, "0": 0}, "3"), "is_good": tick("Good", True)}), cell
    )
    before = panel.picture
    panel.controls["is_good"].field.value = False
    assert panel.words == "value=3: give <another>"
    assert "give &lt;another&gt;" in panel._news.value
    assert 'role="alert"' in panel._news.value
    assert panel.picture is before
    panel.controls["is_good"].field.value = True
    assert "alert" not in panel._news.value
    panel.controls["value"].field.value = 0
    assert panel.words.startswith("ZeroDivisionError")


def test_a_screen_reader_hears_what_changed(cell):
    panel = shown(widgets.split_explorer(), cell)
    panel.controls["last"].field.value = 8
    assert 'role="status"' in panel._news.value
    assert panel.picture.title in panel._news.value


# -- each one's numbers ----------------------------------------------------------


def test_even_shares_need_no_weights(cell):
    panel = shown(widgets.split_explorer(ranks=4, last=2), cell)
    assert "8 + 8 + 8 + 2" in panel.picture.title
    panel.controls["ranks"].field.value = 3
    panel.controls["last"].field.value = 8
    assert "8 + 8 + 8 samples: a mean of means is 0 % off" in panel.picture.title
    assert "1.00, 1.00, 1.00" in panel.picture.alt


def test_the_calculator_shows_what_is_expected(cell):
    panel = shown(widgets.memory_calculator(millions=7000, ranks=8, strategy="zero3"), cell)
    expected = dc.expect("zero3", num_params=7e9, ranks=8, recipe="mixed-adam")
    assert f"{expected.bytes_per_parameter() * 7:.2f} GB on each rank" in panel.picture.title
    panel.controls["strategy"].field.value = "zero0"
    assert "end of backward: 112.00 GB (too much)" in panel.picture.alt
    panel.controls["card"].field.value = 112
    assert "end of backward: 112.00 GB (fits)" in panel.picture.alt


def test_bars_of_the_calculator_are_as_long_as_what_they_stand_for(cell):
    picture = widgets.memory_calculator(strategy="ddp").picture
    ax = picture.draw().axes[0]
    ends = {}
    for bar in ax.patches:
        row = round(bar.get_y() + bar.get_height() / 2)
        ends[row] = max(ends.get(row, 0), bar.get_x() + bar.get_width())
    assert ends == pytest.approx({0: 112, 1: 112, 2: 126, 3: 112})


def test_the_sliders_mark_the_chosen_ranks_and_refuse_too_many(cell):
    panel = shown(widgets.scaling_sliders(hosts=64, ranks_per_host=8), cell)
    assert "on 512 ranks the computing share is ring " in panel.picture.title
    before = panel.picture
    panel.controls["hosts"].field.value = 100_000
    assert "are 800,000 ranks; the model was thought through up to 100,000: give fewer" in panel.words
    assert panel.picture is before
    panel.controls["ranks_per_host"].field.value = 1
    assert "on 100,000 ranks" in panel.picture.title
    panel.controls["hosts"].field.value = 1
    assert "on 1 rank the computing share is ring 100 %" in panel.picture.title


def test_strategies_are_compared_as_expected_and_runs_as_measured(cell):
    panel = shown(widgets.ledger_comparison(model="mlp", ranks=2), cell)
    assert "ddp: mlp on 2 ranks (expected list of rank 0): 20.00 bytes held" in panel.picture.alt
    assert "fsdp2" not in panel.picture.alt
    panel.controls["run 4"].field.value = True
    assert "fsdp2: mlp on 2 ranks" in panel.picture.alt
    run = dc.train("single", model="mlp")
    measured = shown(widgets.ledger_comparison([run, run]), cell)
    assert [control.name for control in measured.controls.values()] == [run.title, f"{run.title}, number 2"]
    assert "16.00 bytes held" in measured.picture.alt
    for control in measured.controls.values():
        control.field.value = False
    assert measured.words == "nothing is ticked; tick a strategy to see its ledgers"


# -- the ring --------------------------------------------------------------------


def test_buttons_step_through_the_ring_and_stop_at_its_ends(cell):
    panel = shown(widgets.ring_stepper(ranks=3, megabytes=30), cell)
    back, forward = panel.buttons
    back.click()
    assert panel.picture.title.startswith("Step 0 of 4")
    for _ in range(9):
        forward.click()
    assert panel.picture.title.startswith("Step 4 of 4, all-gather: each rank has sent 40.00 MB of 40.00 MB")
    assert "1 of 3" not in panel.picture.alt
    panel.controls["ranks"].field.value = 2
    assert panel.picture.title.startswith("Step 2 of 2")
    back.click()
    assert "reduce-scatter: each rank has sent 15.00 MB of 30.00 MB" in panel.picture.title


@pytest.mark.parametrize("num_ranks", [2, 3, 5])
def test_the_plan_is_what_the_scratch_ring_sends(num_ranks, monkeypatch):
    """The ring's own code, with threads for ranks: which piece each message carries, in order."""
    here, sent = threading.local(), [[] for _ in range(num_ranks)]
    boxes = [queue.Queue() for _ in range(num_ranks)]

    def exchange(outgoing, to, incoming, source, group):
        summed, num_summed = outgoing.tolist()
        sent[here.rank].append(round(summed / num_summed) - 1)
        boxes[to].put(outgoing.clone())
        incoming.copy_(boxes[here.rank].get(timeout=10))

    def run(rank):
        here.rank = rank
        # A piece is its place, counted from 1, and a 1: the second number counts the summands.
        tensor = torch.tensor([[place + 1.0, 1.0] for place in range(num_ranks)]).flatten()
        scratch_ring.all_reduce(tensor)
        return tensor

    monkeypatch.setattr(scratch_ring, "place_in", lambda group: (here.rank, num_ranks))
    monkeypatch.setattr(scratch_ring, "exchange", exchange)
    monkeypatch.setattr(scratch_ring, "announced", lambda *_: contextlib.nullcontext())
    with ThreadPoolExecutor(num_ranks) as pool:
        sums = list(pool.map(run, range(num_ranks), timeout=20))
    assert all(each[1] == num_ranks for each in sums)
    assert sent == [[m.piece for m in ring.moves(num_ranks) if m.source == rank] for rank in range(num_ranks)]


@pytest.mark.parametrize("num_ranks", [2, 3, 8])
def test_after_the_last_step_all_have_everything_and_sent_the_formula(num_ranks):
    assert ring.parts_after(ring.num_steps(num_ranks), num_ranks) == [[num_ranks] * num_ranks] * num_ranks
    half = ring.parts_after(num_ranks - 1, num_ranks)
    assert [row[rank] for rank, row in enumerate(half)] == [num_ranks] * num_ranks  # its own, by then
    assert sum(row.count(num_ranks) for row in half) == num_ranks
    sent = [sum(move.source == rank for move in ring.moves(num_ranks)) for rank in range(num_ranks)]
    assert sent == [num_ranks * ring.all_reduce_sent_bytes(1, num_ranks)] * num_ranks


# -- the tree of decisions -------------------------------------------------------


def test_the_way_lit_is_the_plan_s(cell):
    panel = shown(widgets.decision_tree(), cell)
    path = dc.plan("llama-2-7b", gpus=8, gpu_memory="80GB", hosts=1, recipe="mixed-adam").path
    assert path.answer.text in panel.picture.title
    assert f"The way taken: {path.steps[0].question.text} Yes: {path.steps[0].because}" in panel.picture.alt
    panel.controls["cards_per_host"].field.value = 1
    panel.controls["card"].field.value = 640
    assert "1 card of 640 GB: One card is enough" in panel.picture.title
    panel.controls["hosts"].field.value = 16
    assert "16 cards of 640 GB on 16 hosts" in panel.picture.title


def lit(drawn):
    return [patch for patch in drawn.axes[0].patches if patch.get_linewidth() == 3]


@pytest.mark.parametrize(
    ("model", "gpus", "card"),
    [("gpt2", 16, 40), ("llama-2-7b", 8, 80), ("llama-3-8b", 16, 40), ("llama-2-70b", 16, 2), ("gpt2", 1, 1)],
)
def test_only_the_way_is_lit_and_no_text_leaves_its_box(model, gpus, card):
    path = dc.plan(model, gpus=gpus, gpu_memory=f"{card}GB").path
    drawn = tree.decision_tree(TREE, path).draw()
    assert len(lit(drawn)) == len(path.steps) + 1
    assert _outside(drawn) == []


def test_a_tree_without_a_way_lights_nothing_and_has_every_question():
    figure = tree.decision_tree(TREE)
    drawn = figure.draw()
    assert lit(drawn) == []
    assert len(drawn.axes[0].patches) == len(tree.arranged(TREE))
    assert "15 questions and 13 answers" in figure.alt
    assert _outside(drawn) == []


def _outside(drawn):
    """Texts of boxes that stand out of them, and words beside them that cover one another."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    FigureCanvasAgg(drawn).draw()
    boxes = [patch.get_window_extent() for patch in drawn.axes[0].patches]
    texts = [(text.get_text(), text.get_window_extent()) for text in drawn.axes[0].texts if text.get_text()]
    wrong = []
    for words, place in texts:
        x, y = (place.x0 + place.x1) / 2, (place.y0 + place.y1) / 2
        for box in boxes:
            is_inside = box.x0 < place.x0 and place.x1 < box.x1 and box.y0 < place.y0 and place.y1 < box.y1
            if box.contains(x, y) and not is_inside:
                wrong.append(words)
    for index, (words, place) in enumerate(texts):
        wrong += [f"{words} on {other}" for other, at in texts[index + 1 :] if place.overlaps(at)]
    return wrong


def test_a_text_too_long_for_its_box_would_be_found():
    from dpcourse.planning.decision import Answer, Question

    long = Question("q", "word " * 60, Answer("a", "yes"), Answer("b", "no"))
    assert any(words.startswith("1. word") for words in _outside(tree.decision_tree(long).draw()))


def test_every_node_has_a_place_of_its_own():
    places = [(node.column, node.row) for node in tree.arranged(TREE).values()]
    assert len(set(places)) == len(places)
