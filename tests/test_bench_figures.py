"""Figures and tables of results, and whether two runs agree."""

import json
from pathlib import Path

import pytest

from benching import bench
from jax_ozaki.__main__ import main
from jax_ozaki._bench import plots, results
from jax_ozaki._cli import plot

pytestmark = pytest.mark.usefixtures("directory")

CONTRACTS = ["moduli(5)", "mantissa(53)", "normwise(2)"]


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """The file of a run over two phi."""
    path = tmp_path_factory.mktemp("bench") / "results.json"
    methods = ("fast(5)", "staged(5)", "grouped(5)", "mantissa(53)", "normwise(2)", "full-fused")
    assert bench("--sizes", 24, "--phi", 0.5, 2, "--methods", *methods, "--json", path) == 0
    return path


# Figures.


@pytest.mark.parametrize("column", ["contract", "guarantee"])
def test_no_figure_of_a_row_without_a_contract(column, measured, capsys):
    found = json.loads(measured.read_text())
    found["rows"][3][column] = None
    Path("r.json").write_text(json.dumps(found))
    assert main(["plot", "r.json"]) == 2
    assert "row 3" in capsys.readouterr().err


def test_figures(measured, directory, capsys):
    from matplotlib.image import imread

    assert main(["plot", str(measured), "-o", "figures", "--format", "png", "svg"]) == 0
    for name in plots.FIGURES:
        image = imread(f"figures-{name}.png")
        assert min(image.shape[:2]) > 300 and image[..., :3].std() > 0.02
        assert (directory / f"figures-{name}.svg").read_text().startswith("<?xml")
        assert f"{name}: figures-{name}.png" in capsys.readouterr().out or name != "speed"


def test_only_equal_contracts_share_a_panel(measured):
    figure = plots.speed(results.read(measured))
    panels = [axis for axis in figure.axes if axis.get_title()]
    assert [axis.get_title() for axis in panels] == CONTRACTS
    lines = [{line.get_label() for line in axis.get_lines()} for axis in panels]
    assert lines[0] == {"native (its own contract)", "fast", "staged", "grouped"}
    assert all(of_panel == {"native (its own contract)", "contract"} for of_panel in lines[1:])


def test_figures_need_results(measured, capsys):
    (path := Path("r.json")).write_text("{}")
    assert main(["plot", "r.json"]) == 2
    path.write_text("[1")
    assert main(["plot", "r.json"]) == 2
    assert main(["plot", "missing.json"]) == 2
    found = json.loads(measured.read_text())
    del found["rows"][0]["rms_error"]
    path.write_text(json.dumps(found))
    assert main(["plot", "r.json"]) == 2
    error = capsys.readouterr().err
    for words in ("schema", "not a JSON file", "No such file", "row 0 has no rms_error"):
        assert words in error


def test_a_profile_has_no_figures(capsys):
    Path("p.json").write_bytes(results.encode_profile({}, []))
    assert main(["plot", "p.json"]) == 2
    assert "p.json: a profile" in capsys.readouterr().err


def test_nothing_to_draw(capsys):
    assert bench("--sizes", 8, "--phi", 1, "--methods", "native", "--json", "r.json") == 0
    assert main(["plot", "r.json"]) == 0
    out = capsys.readouterr().out
    assert "speed: nothing to draw" in out and "stages: nothing to draw" in out


def test_figures_without_matplotlib(measured, monkeypatch, capsys):
    monkeypatch.setattr(plot.importlib.util, "find_spec", lambda name: None)
    assert main(["plot", str(measured)]) == 1
    assert "jax-ozaki[bench]" in capsys.readouterr().err


# Tables.


def test_tables_are_those_that_bench_printed(measured, capsys):
    assert main(["results", str(measured)]) == 0
    out = capsys.readouterr().out
    assert "\nn = 24\n" in out and "  grouped   moduli(5)" in out
    assert out.endswith("left out:\n  full-fused(14): this kernel needs an NVIDIA GPU, and jax runs on cpu here\n")


def test_tables_in_markdown(measured, capsys):
    assert main(["results", str(measured), "--markdown"]) == 0
    lines = capsys.readouterr().out.splitlines()
    table = lines[lines.index("**n = 24**") + 2 :]
    assert table[0].startswith("| method | contract |") and table[0].endswith("| phi=0.5 | phi=2 | bound |")
    assert table[1].startswith("| --- | --- | ---: |")
    assert {line.count("|") for line in table[: 2 + 6]} == {table[0].count("|")}
    assert "- full-fused(14): " in lines[-1]


# Agreement of two runs.


def changed(measured, change):
    found = json.loads(measured.read_text())
    change(found["rows"])
    Path("again.json").write_text(json.dumps(found))
    return main(["results", str(measured), "again.json"])


def test_a_run_agrees_with_itself(measured, capsys):
    assert changed(measured, lambda rows: None) == 0
    rows = len(results.read(measured)["rows"])
    assert f"{rows // 2} of {rows // 2} times agree" in capsys.readouterr().out.replace("\n", " ")


@pytest.mark.parametrize(("factor", "spread", "status"), [(1.04, 0, 0), (1.06, 0, 1), (1.2, 0.3, 0), (0.7, 0.3, 1)])
def test_times_agree_within_the_larger_spread(factor, spread, status, measured, capsys):
    def change(rows):
        for row in rows:
            row["spread"] = 0
        rows[1]["ms"] *= factor
        rows[1]["spread"] = spread

    Path("first.json").write_text(measured.read_text())
    found = json.loads(measured.read_text())
    for row in found["rows"]:
        row["spread"] = 0
    Path("first.json").write_text(json.dumps(found))
    assert changed(Path("first.json"), change) == status
    captured = capsys.readouterr()
    assert ("fast moduli(5), (m, n, k) = (24, 24, 24)" in captured.out) == bool(status)
    assert ("do not agree" in captured.err) == bool(status)


def test_rows_of_one_run_only_and_other_errors_are_told(measured, capsys):
    def change(rows):
        del rows[-1]
        rows[0]["rms_error"] *= 2

    assert changed(measured, change) == 0
    out = capsys.readouterr().out
    count = len(results.read(measured)["rows"]) - 1
    assert f"{count - 1} of {count} rows have equal errors" in out and "in one run only: contract normwise(2)" in out


def test_a_profile_is_not_compared(measured, capsys):
    Path("p.json").write_bytes(results.encode_profile({}, []))
    assert main(["results", str(measured), "p.json"]) == 2
    assert "a profile has no spread" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["plot", "results"])
def test_help(command, capsys):
    with pytest.raises(SystemExit) as stopped:
        main([command, "--help"])
    assert stopped.value.code == 0
    assert f"usage: python -m jax_ozaki {command}" in capsys.readouterr().out
