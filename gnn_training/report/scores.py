"""What an evaluation found: one row per graph, their summary and tables.

The gap of a coloring is its number of colors above the best known.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import fmean, median
from typing import Any

import numpy as np

from gnn_training.graph import Graph

METHODS = {
    "dsatur": "DSATUR", "tabucol": "TabuCol", "untrained": "untrained rule", "shipped": "shipped rule",
    "rule": "trained rule", "one_call": "one call", "tabucol_call": "TabuCol in its time", "search": "search",
}  # fmt: skip
GRAPH_COLUMNS = {"name": "graph", "num_nodes": "nodes", "num_edges": "edges", "best_known": "best known"}
SCORE_COLUMNS = {
    "graphs": "graphs", "mean_colors": "mean colors", "mean_gap": "mean gap", "dsatur_gap_there": "DSATUR there",
    "at_best_known": "at best known", "wins": "wins", "ties": "ties", "losses": "losses", "median_seconds": "median s",
}  # fmt: skip
COMPARED_SECONDS = 0.2  # seconds of TabuCol and of each rule, unless others are given
SIZES = (100, 250, 500, 1000)  # numbers of nodes at which the next class of sizes begins
SHOWN_GRAPHS = 100  # with more graphs there is no table of graphs
PLANTED_COLORING = {"planted", "leighton"}  # families whose label is a planted coloring, which searches rarely find
PLANTED = "planted coloring"  # title of the row that sums up PLANTED_COLORING


@dataclass
class GraphScores:
    """The scores of one graph. A method that was not asked for, or needs too much time or memory, is missing."""

    graph: Graph  # not in the report
    name: str
    family: str | None
    num_nodes: int
    num_edges: int
    best_known: int | None
    clique: int  # a lower bound
    lower: int  # number of colors at which a search ends; not in the report
    colors: dict[str, int] = field(default_factory=dict)  # by method, a key of METHODS; DSATUR is always there
    seconds: dict[str, float] = field(default_factory=dict)
    progress: dict[str, list[tuple[float, int]]] = field(default_factory=dict)  # seconds and colors at each gain
    conflicts: int | None = None  # edges whose ends have the same class in one call, before decoding
    chromatic: float | None = None  # the network's estimate of the chromatic number
    gpu: int | None = None  # number of the GPU that search had beside its threads
    published: dict[str, bool] = field(default_factory=dict)  # by solver: whether it reached the best known number
    colorings: dict[str, np.ndarray] = field(default_factory=dict)  # of a graph that can be drawn; not in the report

    def gap(self, method: str) -> int:
        """Gap of the method's coloring, for a graph with a best known number."""
        assert self.best_known is not None
        return self.colors[method] - self.best_known


def without_planted(rows: Sequence[GraphScores]) -> Sequence[GraphScores]:
    """The rows whose gap a search can close: those without a planted coloring, or all if there are no others."""
    return [row for row in rows if row.family not in PLANTED_COLORING] or rows


def summarize(rows: Sequence[GraphScores]) -> dict[str, Any]:
    """Sum up rows: each method over the graphs it colored, the estimate over those with a best known number."""
    estimates = [(row.chromatic, row.best_known) for row in rows]
    errors = [abs(estimate - best) for estimate, best in estimates if estimate is not None and best is not None]
    return {
        "graphs": len(rows),
        "with_best_known": sum(row.best_known is not None for row in rows),
        "chromatic_mae": _mean(errors),
        "methods": {method: scores for method in METHODS if (scores := _scores(rows, method))},
        # Share of the graphs whose best known number a published solver reached.
        "published": {name: fmean(row.published[name] for row in rows) for name in (rows[0].published if rows else ())},
    }


def by_family(rows: Sequence[GraphScores]) -> dict[str, dict[str, Any]]:
    """The summary of every family, of every size without planted colorings, and of planted colorings; {} if no row has
    a family. A family such as "q = 3, n = 16" counts in "q = 3" too; such names tell the size.
    """
    groups: dict[str, list[GraphScores]] = {}
    for row in rows:
        for name in {row.family, row.family.partition(",")[0]} if row.family else ():
            groups.setdefault(name, []).append(row)
    names = sorted(groups, key=lambda name: (name.partition(",")[0], len(name), name))
    if groups and not any("," in name for name in groups):
        for low, high in pairwise((1, *SIZES, math.inf)):
            size = f"{low} to {high - 1} nodes" if math.isfinite(high) else f"{low} nodes and more"
            if of_size := [row for row in without_planted(rows) if low <= row.num_nodes < high]:
                groups[size] = of_size
                names.append(size)
    if len(without_planted(rows)) < len(rows):
        groups[PLANTED] = [row for row in rows if row.family in PLANTED_COLORING]
        names.append(PLANTED)
    return {name: summarize(groups[name]) for name in names}


def _scores(rows: Sequence[GraphScores], method: str) -> dict[str, Any] | None:
    done = [row for row in rows if method in row.colors]
    if not done:
        return None
    rated = [row for row in done if row.best_known is not None]
    above_dsatur = [row.colors[method] - row.colors["dsatur"] for row in done]
    return {
        "graphs": len(done),
        "mean_colors": _mean([row.colors[method] for row in done]),
        "mean_gap": _mean([row.gap(method) for row in rated]),
        # A method that leaves large graphs out looks better than it is; compare it with DSATUR on the same graphs.
        "dsatur_gap_there": _mean([row.gap("dsatur") for row in rated]),
        "at_best_known": sum(row.gap(method) <= 0 for row in rated) if rated else None,
        "solved": _mean([row.gap(method) <= 0 for row in rated]),
        "wins": sum(colors < 0 for colors in above_dsatur),
        "ties": above_dsatur.count(0),
        "losses": sum(colors > 0 for colors in above_dsatur),
        "median_seconds": median(row.seconds[method] for row in done),
    }


def _mean(values: Sequence[float]) -> float | None:
    return fmean(values) if values else None


def verdict(rows: Sequence[GraphScores], seconds: float) -> str:
    """A sentence that says how many colors the trained rule saves against others with so many seconds each, and which
    file to use; "" if it was not compared. Differences are means of pairs, with one standard error; two of them count.
    """
    done = [row for row in rows if {"rule", "tabucol"} <= row.colors.keys()]
    if not done:
        return ""

    def saved(method: str, other: str) -> tuple[float, float]:
        changes = np.array([row.colors[other] - row.colors[method] for row in done])
        return changes.mean(), changes.std(ddof=1) / math.sqrt(len(done)) if len(done) > 1 else math.inf

    def words(method: str, other: str) -> str:
        mean, error = saved(method, other)
        return f"{mean:.2f} ± {error:.2f}" if math.isfinite(error) else f"{mean:.2f}"

    sentence = f"On {len(done)} graphs with {seconds:g} s each, this file saves {words('rule', 'tabucol')} "
    sentence += "colors against TabuCol"
    if "untrained" in done[0].colors:
        sentence += f" and {words('rule', 'untrained')} against the untrained rule"
    gain, error = saved("rule", "tabucol")
    advice = "use it" if gain > 2 * error else "no clear gain over TabuCol shows here"
    if "shipped" in done[0].colors:
        sentence += f"; the shipped file saves {words('shipped', 'tabucol')} against TabuCol"
        more, error = saved("rule", "shipped")
        if more < -2 * error:
            advice = "use the shipped file for such graphs"
        elif more <= 2 * error and advice == "use it":
            advice = "use it or the shipped one, these graphs cannot tell them apart"
    return f"{sentence}: {advice}."


def search_resources(seconds: float, threads: int, gpus: Mapping[int, str]) -> str:
    """A sentence about the resources of search; "" if it was not asked for. gpus: names by number."""
    if not seconds:
        return ""
    had = f"Search had {threads} thread{'s' * (threads > 1)} and {seconds:g} s for a graph"
    if not gpus:
        return f"{had}."
    names = ", ".join(f"GPU {gpu} ({name})" for gpu, name in gpus.items())
    compared = "its seconds do not compare with those of the other methods, which have cores alone"
    return f"{had}, and one of these beside: {names}; {compared}. If one failed, the log says so."


def tables(report: dict[str, Any]) -> dict[str, dict[str, Sequence[object]]]:
    """Columns by title of the tables of a report: "graphs" unless there are many, "families" if there are any, by the
    score in the title of their names, and "methods". A column without any value is left out.
    """
    made: dict[str, dict[str, Sequence[object]]] = {}
    rows, summary, families = report.get("graphs", []), report["summary"], report["families"]
    if rows and len(rows) <= SHOWN_GRAPHS:
        made["graphs"] = {title: [row[field] for row in rows] for field, title in GRAPH_COLUMNS.items()}
        made["graphs"] |= {title: [row["colors"].get(method) for row in rows] for method, title in METHODS.items()}
        made["graphs"] |= {title: [row.get(title) for row in rows] for title in ("conflicts", "chromatic", "gpu")}
        for title, method in (("call s", "one_call"), ("search s", "search")):
            made["graphs"][title] = [row["seconds"].get(method) for row in rows]
    if families:
        title, key = ("mean gap", "mean_gap") if summary["with_best_known"] else ("mean colors", "mean_colors")
        title, key = ("share solved", "solved") if summary["published"] else (title, key)
        groups = families.values()
        columns = made["families"] = {title: list(families), "graphs": [group["graphs"] for group in groups]}
        columns |= {METHODS[m]: [group["methods"].get(m, {}).get(key) for group in groups] for m in METHODS}
        columns |= {name: [group["published"][name] for group in groups] for name in summary["published"]}
        columns["chromatic MAE"] = [group["chromatic_mae"] for group in groups]
    scores = summary["methods"].values()
    made["methods"] = {"method": [METHODS[method] for method in summary["methods"]]}
    made["methods"] |= {title: [score[key] for score in scores] for key, title in SCORE_COLUMNS.items()}
    if len({score["graphs"] for score in scores}) == 1:  # then the mean gap of DSATUR is enough
        del made["methods"]["DSATUR there"]
    return {name: {title: values for title, values in columns.items() if any(value is not None for value in values)}
            for name, columns in made.items()}  # fmt: skip
