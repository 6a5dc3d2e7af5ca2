"""What an evaluation has found: sums per method, and sentences."""

from gnn_training.report import scores
from gnn_training.report.scores import Row


def called(best_known: int | None, dsatur: int, one_call: int, chromatic: float | None = None) -> Row:
    colors, seconds = {"dsatur": dsatur, "one_call": one_call}, {"dsatur": 0.5, "one_call": 1.0}
    return Row("g", None, 9, 9, best_known, 1, colors, seconds, chromatic=chromatic)


def colored(family: str | None = None, **colors: int) -> Row:
    return Row("g", family, 9, 9, None, 1, colors)


def test_a_method_is_compared_with_dsatur_on_the_graphs_it_colored():
    rows = [called(5, 6, 5, 5.5), called(4, 4, 5, 6.0), called(None, 9, 7), called(10, 20, 0)]
    del rows[3].colors["one_call"]
    summary = scores.summarize(rows)
    assert summary["chromatic_mae"] == 1.25
    one_call = summary["methods"]["one_call"]
    assert (one_call["graphs"], one_call["mean_gap"], one_call["dsatur_gap_there"]) == (3, 0.5, 0.5)
    assert (one_call["wins"], one_call["ties"], one_call["losses"]) == (2, 0, 1)
    assert (one_call["at_best_known"], one_call["median_seconds"]) == (1, 1.0)
    assert summary["methods"]["dsatur"]["mean_gap"] == (1 + 0 + 10) / 3
    assert "rlf" not in summary["methods"]


def test_a_family_with_two_parts_counts_in_the_first_part_too():
    rows = [called(5, 6, 5), called(5, 6, 6), called(4, 4, 5)]
    for number, family in enumerate(("q = 5, n = 128", "q = 5, n = 16", "b")):
        rows[number].family, rows[number].published = family, {"other": number == 0}
    families = scores.by_family(rows)
    assert [(name, summary["graphs"]) for name, summary in families.items()] == [
        ("b", 1), ("q = 5", 2), ("q = 5, n = 16", 1), ("q = 5, n = 128", 1),
    ]  # fmt: skip
    assert families["q = 5"]["methods"]["one_call"]["solved"] == families["q = 5"]["published"]["other"] == 0.5


def test_the_verdict_says_what_to_use():
    def verdict(**more: int) -> str:
        changes = [{method: 7 + change + i % 2 for method, change in more.items()} for i in range(8)]
        return scores.verdict([colored(rule=7, **change) for change in changes])

    assert verdict() == ""
    better = "needs, in colors, 1.50 ± 0.19 fewer than the untrained rule, 2.50 ± 0.19 fewer than TabuCol: use it."
    assert better in verdict(untrained=1, tabucol=2)
    unclear = "train longer or score more graphs, no clear gain shows here."
    assert verdict(untrained=-2, tabucol=1).endswith(unclear)
    worse = "do not use it for such graphs, the shipped rule found fewer colors."
    assert verdict(untrained=1, shipped=-2).endswith(worse)
    equal = "as many as TabuCol: use either, these graphs cannot tell it apart from TabuCol."
    assert scores.verdict([colored(rule=k, tabucol=k) for k in (7, 8)]).endswith(equal)


def test_the_comparison_says_who_needs_fewer_colors_and_where():
    families = (("dense", 2), ("geometric", -1), ("queen", 0))
    rows = [colored(family, dsatur=9, tabucol=7, rule=7 + more) for family, more in families]
    expected = "needs 0.33 colors more than TabuCol; fewer on geometric (-1.00); more on dense (+2.00)."
    assert scores.comparison(rows, ("rule", "search")) == [f"In the same seconds, trained rule {expected}"]
    same = "In the same seconds, trained rule needs as many colors as TabuCol."
    assert scores.comparison(rows[2:], ("rule",)) == [same]
