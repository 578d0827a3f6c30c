"""Sums, groups, differences and overlap of the course's three nouns, and the tables that show them."""

import subprocess
import sys

import pytest

from dpcourse.ledger import (
    Holding,
    Span,
    Transfer,
    difference,
    group_by,
    overlap,
    select,
    sums_by,
    total,
)
from dpcourse.tables import Table, bytes_text, cell_text, seconds_text

HOLDINGS = [
    Holding("parameters", "blocks.0", 400, "forward"),
    Holding("parameters", "blocks.1", 600, "forward"),
    Holding("gradients", "blocks.0", 400, "backward"),
    Holding("parameters", "blocks.0", 400, "forward", rank=1),
]


def test_total_adds_the_field_of_the_items_that_match():
    assert total(HOLDINGS) == 1800
    assert total(HOLDINGS, owner="parameters", rank=0) == 1000
    assert total(HOLDINGS, owner="optimizer") == 0


def test_total_of_transfers_keeps_payload_and_sent_bytes_apart():
    group = (0, 1, 2, 3)
    transfers = [
        Transfer("all_reduce", "bucket 0", group, 1_000_000, 1_500_000.0, "backward"),
        Transfer("kernel count", "sockets", group, 0, 1_500_432, "backward"),
        Transfer("all_to_all", "unknown", group, 8, None, "backward"),
    ]
    assert total(transfers) == 1_000_008
    assert total(transfers, "sent_bytes", collective="all_reduce") == 1_500_000
    assert total(transfers, "sent_bytes") == 3_000_432  # what nobody knows does not count


def test_group_by_keeps_order_and_uses_tuples_for_several_keys():
    assert list(group_by(HOLDINGS, "owner")) == ["parameters", "gradients"]
    assert sums_by(HOLDINGS, "owner", "phase", field="num_bytes") == {
        ("parameters", "forward"): 1400,
        ("gradients", "backward"): 400,
    }
    assert select(HOLDINGS, unit="blocks.1") == [HOLDINGS[1]]


def test_difference_says_exact_off_missing_and_not_predicted():
    measured = [
        Holding("parameters", "a", 100, "step"),
        Holding("gradients", "a", 101, "step"),
        Holding("other", "a", 7, "step"),
    ]
    expected = [
        Holding("parameters", "a", 100, "step"),
        Holding("gradients", "a", 100, "step"),
        Holding("buckets", "a", 5, "step"),
    ]
    verdicts = {item.key: item.verdict for item in difference(measured, expected, by=["owner"])}
    assert verdicts == {
        "parameters": "exact",
        "gradients": "+1.00%",
        "buckets": "not seen",
        "other": "not predicted",
    }


def test_difference_names_bytes_where_none_were_expected():
    [item] = difference([Holding("buckets", "a", 5, "step")], [Holding("buckets", "a", 0, "step")], ["owner"])
    assert item.verdict == "expected none"
    assert not item.is_exact


def test_overlap_of_computation_0_to_10_and_communication_5_to_12():
    found = overlap([Span("computation", "backward", 0, 10), Span("communication", "bucket 0", 5, 12)])
    assert (found.active_seconds, found.overlap_seconds) == (12, 5)
    assert round(found.hidden_share, 2) == 0.71


def test_overlap_does_not_count_nested_or_doubled_intervals_twice():
    spans = [
        Span("computation", "backward", 0, 10),
        Span("computation", "matmul", 2, 4),
        Span("computation", "copy", 9, 10),
        Span("communication", "bucket 0", 5, 12),
        Span("communication", "bucket 1", 6, 8),
    ]
    assert overlap(spans) == overlap([spans[0], spans[3]])


def test_overlap_without_communication_hides_nothing():
    assert overlap([Span("computation", "forward", 0, 1)]).hidden_share == 0
    assert overlap([]).active_seconds == 0


def test_overlap_refuses_the_spans_of_two_ranks():
    spans = [Span("computation", "forward", 0, 1, rank) for rank in (0, 1)]
    with pytest.raises(ValueError, match=r"ranks \[0, 1\].*select\(spans, rank=0\)"):
        overlap(spans)


def test_numbers_are_written_in_decimal_units():
    assert [bytes_text(n) for n in (0, 999, 1000, 2_052_000, 16e9, 3.5e12)] == [
        "0 B", "999 B", "1.00 kB", "2.05 MB", "16.00 GB", "3.50 TB",
    ]  # fmt: skip
    assert [seconds_text(s) for s in (2.5, 0.0042, 0.0000021)] == ["2.50 s", "4.20 ms", "2 us"]
    assert [cell_text(v) for v in (1234567, 1.50032, 123456.7, None, True)] == [
        "1,234,567", "1.5", "123,457", "-", "yes",
    ]  # fmt: skip


def test_a_table_aligns_numbers_right_and_says_the_same_in_html():
    table = Table(["owner", "bytes"], [["a<b>", 4], ["gradients", 1200]], caption="Held & kept")
    assert str(table).splitlines() == [
        "Held & kept",
        "owner      bytes",
        "---------  -----",
        "a<b>           4",
        "gradients  1,200",
    ]
    html = table.to_html()
    assert "a&lt;b&gt;" in html
    assert "a<b>" not in html
    assert "Held &amp; kept" in html
    assert html.count("text-align:right") == 3  # the head and two cells of the column of numbers
    assert html.count("text-align:right;white-space:nowrap") == 2  # no unit alone on a line
    assert repr(table) == str(table)


def test_a_table_shows_html_except_in_the_reference_configuration(monkeypatch):
    table = Table(["n"], [[1]])
    monkeypatch.delenv("DPCOURSE_REFERENCE", raising=False)
    assert set(table._repr_mimebundle_()) == {"text/plain", "text/html"}
    monkeypatch.setenv("DPCOURSE_REFERENCE", "1")
    assert set(table._repr_mimebundle_()) == {"text/plain"}
    assert table._repr_html_() is None


def test_a_table_refuses_a_row_of_the_wrong_length():
    with pytest.raises(ValueError, match="1 cells where the table has 2 columns"):
        Table(["a", "b"], [["x"]])


def test_an_empty_table_still_shows_its_columns():
    assert str(Table(["a", "b"], [])).startswith("a  b")


def test_the_vocabulary_needs_neither_torch_nor_numpy():
    code = (
        "import sys, dpcourse.ledger, dpcourse.layout, dpcourse.tables\n"
        "assert not {'torch', 'numpy', 'matplotlib'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30)


def test_a_table_gives_the_number_in_a_cell_without_its_unit():
    table = Table(["what", "off"], [["gradient", "51 %"], ["size", "1,200 kB"], ["loss", "below 0.01 %"]])
    assert table.number(0, "off") == 51.0
    assert table.number(1, "off") == 1200.0
    with pytest.raises(ValueError, match=r"row 2 has no number under 'off': 'below 0.01 %'"):
        table.number(2, "off")
    with pytest.raises(ValueError, match="no column 'on'; the table has what, off"):
        table.number(0, "on")
