"""What a benchmark found, as tables to read."""

from collections.abc import Iterator, Sequence

from rich import box
from rich.table import Table

NAMES = {"scatter": "PyG, same network", "gatv2": "PyG, GATv2"}
MIB = 2**20


def tables(report: dict) -> Iterator[Table]:
    """One after the other; what was not measured is left out."""
    yield _pace(report)
    yield _comparison(report)
    yield _phases(report["phase_seconds"])
    yield _growth(report["growth"])
    if report["ranks"]:
        yield _ranks(report["ranks"])
    yield _balance(report["balance"])
    yield _forecast(report["forecast"])


def _pace(report: dict) -> Table:
    precision = report["precision"]
    limits = report["ceilings"][precision]
    return _table(
        f"This training on {report['device']}, {_count(report['threads'], 'thread')}, products in {precision}",
        {
            "graphs/s": [f"{report['graphs_per_second']:.1f}"],
            "directed edges/s": [f"{report['edges_per_second']:,.0f}"],
            "of the roofline": [f"{report['roofline_share']:.1%}"],
            "of that of float32": [f"{report['roofline_share_by_float32']:.1%}"],
            "GFLOP/s at best": [f"{limits['flops_per_second'] / 1e9:,.0f}"],
            "GB/s at best": [f"{limits['bytes_per_second'] / 1e9:,.0f}"],
            "MiB at the peak": [f"{report['growth']['peak_bytes'] / MIB:,.0f}"],
            "s to the first step": [f"{report['seconds_to_first_step']:.1f}"],
            "compilation": [report["compilation"]],
        },
    )


def _comparison(report: dict) -> Table:
    peers, times = report["peers"], {name: f"speedup_over_{name}" for name in report["peers"]}
    columns = {
        "": ["this training", *(NAMES[name] for name in peers)],
        "graphs/s": [f"{rate['graphs_per_second']:.2f}" for rate in (report, *peers.values())],
        "this is": ["", *(f"{report[key]:.1f} times as fast" for key in times.values())],
        "graphs a batch": ["planned", *(str(rate["batch_size"]) for rate in peers.values())],
        "of an epoch timed": ["", *(f"{rate['timed_share']:.1%}" for rate in peers.values())],
        "beyond the largest timed": ["", *(f"{rate['beyond_share']:.1%}" for rate in peers.values())],
    }
    if all(f"{key}_all_cores" in report for key in times.values()):
        columns["on all cores"] = ["", *(f"{report[f'{key}_all_cores']:.1f} times" for key in times.values())]
    return _table(f"The same graphs in the same process, {_count(report['threads'], 'thread')} each", columns)


def _count(number: int, what: str) -> str:
    return f"{number} {what}" + "s" * (number != 1)


def _phases(seconds: dict[str, float]) -> Table:
    whole = sum(seconds.values())
    return _table(
        "A step",
        {
            "phase": list(seconds),
            "ms": [f"{1e3 * each:.2f}" for each in seconds.values()],
            "share": [f"{each / whole:.1%}" for each in seconds.values()],
        },
    )


def _growth(growth: dict) -> Table:
    measured, formula = growth["measured"], growth["formula"]
    shapes = [row["shape"] for row in measured]
    return _table(
        f"A step by shape, measured and by formula, which is at worst {formula['time_error']:.0%} off in time and "
        f"{formula['memory_error']:.0%} in memory, and {abs(growth['error_on_training']):.0%} over the training above",
        {
            **{name: [str(shape[name]) for shape in shapes] for name in ("graphs", "nodes", "colors")},
            **{name.replace("_", " "): [str(row[name]) for row in measured] for name in ("rounds", "free_rounds")},
            "ms": [f"{1e3 * row['seconds']:.1f}" for row in measured],
            "formula ms": [f"{1e3 * row['predicted_seconds']:.1f}" for row in measured],
            "MiB": [f"{row['bytes'] / MIB:.1f}" for row in measured],
            "formula MiB": [f"{row['predicted_bytes'] / MIB:.1f}" for row in measured],
        },
    )


def _ranks(rows: Sequence[dict]) -> Table:
    return _table(
        "The same global batches on ranks of this machine",
        {
            "ranks": [str(row["ranks"]) for row in rows],
            "ms a step": [f"{1e3 * row['seconds_per_step']:.1f}" for row in rows],
            "times as fast as one": [f"{row['speedup']:.2f}" for row in rows],
        },
    )


def _balance(rows: Sequence[dict]) -> Table:
    return _table(
        "An epoch as planned",
        {
            "ranks": [str(row["ranks"]) for row in rows],
            "steps": [str(row["steps"]) for row in rows],
            "busiest over mean rank": [f"{row['imbalance']:.3f}" for row in rows],
            "of it useful": [f"{row['useful_share']:.1%}" for row in rows],
        },
    )


def _forecast(rows: Sequence[dict]) -> Table:
    return _table(
        "An epoch on linked devices such as this one, by model",
        {
            "ranks": [str(row["ranks"]) for row in rows],
            "link": [row["link"] for row in rows],
            "us an all-reduce": [f"{1e6 * row['all_reduce_seconds']:.0f}" for row in rows],
            "s an epoch": [f"{row['seconds']:.2f}" for row in rows],
            "times as fast as one": [f"{row['speedup']:.2f}" for row in rows],
        },
    )


def _table(title: str, columns: dict[str, list[str]]) -> Table:
    table = Table(title=title, title_justify="left", box=box.MARKDOWN)
    for number, name in enumerate(columns):
        table.add_column(name, justify="right" if number else "left", no_wrap=True)
    for row in zip(*columns.values(), strict=True):
        table.add_row(*row)
    return table
