"""The benchmark of a small call runs and has the required limits."""

from benchmarks.overhead import measure


def test_every_case_is_measured():
    found = {overhead.case: overhead for overhead in measure(turns=1, calls=1)}
    assert {name: overhead.limit for name, overhead in found.items()} == {
        "attend": 25,
        "attend, causal": 25,
        "attend, with gradients": 25,
        "module": 0,
        "module, with gradients": 0,
    }
    assert all("difference" in str(overhead) for overhead in found.values())
