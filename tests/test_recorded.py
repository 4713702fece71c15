"""What is made of recorded measurements: the crossover and the tables of documents."""

import json

import pytest

import crossover
import tables

GPU = "a GPU"


def times(ratios, dtype="float64"):
    """Results of the two contracts by size, at these ratios of the native speed; None was not measured."""
    rows = [
        {"n": n, "contract": contract, "dtype": dtype, "ratio_graph": ratio, "ratio": 9}
        for n, pair in ratios.items()
        for contract, ratio in zip(crossover.CONTRACTS, pair, strict=True)
        if ratio is not None
    ]
    return {"meta": {"gpu": GPU}, "rows": rows}


@pytest.mark.parametrize(
    ("ratios", "size"),
    [
        ({1024: (0.5, 0.5), 4096: (2, 2)}, 2048),  # half way between the logarithms
        ({1024: (0.5, 1.5), 4096: (2, 2)}, 2048),  # the slower one of both contracts
        ({2048: (0.97, 0.99), 4096: (1.36, 1.35)}, 2304),
        ({256: (1.2, 1.3), 1024: (0.5, 2), 4096: (2, 2)}, 2048),  # on every size from there
        ({1024: (0.5, 0.5), 2048: (3, None), 4096: (2, 2)}, 2048),  # measured for both
        ({4096: (2, 2), 1024: (0.5, 0.5), 512: (0.3, 2)}, 2048),  # in any order
        ({512: (1, 1.3), 1024: (2, 2)}, 512),  # the smallest one that was measured
    ],
)
def test_the_crossover_is_the_size_from_which_on_both_contracts_are_as_fast(ratios, size):
    entry = crossover.found(times(ratios))
    assert entry.keys() == {GPU} and entry[GPU]["size"] == size


def test_the_source_of_the_crossover():
    source = crossover.found(times({512: (0.7, 1.1), 1024: (0.5, 0.6), 4096: (2.5, 2)}))[GPU]["source"]
    assert source.endswith("at least 0.50 times the native speed at 1024, 2.00 times the native speed at 4096")


def test_float64_products_count_inside_a_program_where_they_were_measured_there():
    results = times({1024: (0.5, 0.5)})
    results["rows"] += times({2048: (2, 2)}, dtype="complex128")["rows"]
    results["rows"] += [{"n": 4096, "contract": x, "dtype": "float64", "ratio": 2} for x in crossover.CONTRACTS]
    results["rows"].append({"n": 8192, "contract": "exact", "dtype": "float64", "ratio_graph": 0.1, "ratio": 0.1})
    assert crossover.found(results)[GPU]["size"] == 2048


@pytest.mark.parametrize("ratios", [{}, {512: (1.2, None)}, {256: (1.2, 1.3), 512: (0.9, 1.3)}])
def test_no_crossover(ratios):
    with pytest.raises(SystemExit, match="no size"):
        crossover.found(times(ratios))


def test_the_package_has_the_recorded_crossover():
    entry = crossover.found(json.loads((crossover.ROOT / crossover.RESULTS).read_text()))
    recorded = json.loads(crossover.RECORD.read_text())
    assert entry.items() <= recorded.items()


def test_the_table_of_symmetric_products(tmp_path):
    names = ("jnp.dot", "x y", "x x, symmetric", "x x", "x x^T")
    rows = [
        {
            "n": n,
            "contract": "exact",
            "ms": dict(zip(names, ms, strict=True)),
            "ratio": dict(zip(names, ratio, strict=True)),
        }
        for n, ms, ratio in (
            (2048, (9, 1.234, 0.5678, 12.34, 123.4), (1, 7.296, 15.8, 0.731, 0.0734)),
            (16384, (9, 1234, 1, 2, 3), (1, 0.01, 9, 4.5, 3)),
        )
    ]
    (tmp_path / "symmetric.json").write_text(json.dumps({"meta": {}, "rows": rows}))
    assert tables.symmetric(tables.Results(tmp_path)).splitlines() == [
        "| n | contract | two arrays | x x, symmetric | x x, not | x x^T |",
        "| --- | --- | --- | --- | --- | --- |",
        "| 2048 | exact | 1.23 (7.30) | 0.568 (15.80) | 12.3 (0.73) | 123 (0.07) |",
        "| 16384 | exact | 1234 (0.01) | 1.00 (9.00) | 2.00 (4.50) | 3.00 (3.00) |",
    ]


@pytest.mark.parametrize("name", tables.DOCUMENTS)
def test_documents_have_the_recorded_tables(name):
    text = (tables.ROOT / name).read_text()
    results = tables.Results(tables.ROOT / "benchmarks/results/h200")
    assert tables.MARKED.search(text)
    for _, table in tables.MARKED.findall(text):
        assert f"<!-- table: {table} -->\n{tables.TABLES[table](results)}" in text
