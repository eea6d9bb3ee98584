"""Calls that gave wrong results or errors in a comparison with an independent oracle."""

import tracemalloc
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import pytest
import torch
from jaxtyping import config
from torch import Tensor
from torch.autograd import forward_ad
from torch.func import vmap

import headwise as hw
from headwise.call import Call
from headwise.engines import ENGINES, can_run
from headwise.masks import Mask
from headwise.positions import Frequencies, Stage
from headwise.positions.relative_terms import RelativeTerms
from headwise.reference import reference
from headwise.verify.oracle.tolerance import accept
from tests.examples import DIM, HEADS, KEYS, QUERIES, every_position, tensors

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")

NAMES = [
    pytest.param(engine.NAME, marks=[pytest.mark.slow] if engine.NAME == "flex" else [])
    for engine in ENGINES
]
"""Every engine; flex compiles for seconds."""
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


@pytest.fixture(autouse=True)
def uncheck_shapes() -> Iterator[None]:
    """The checks of shapes under pytest cannot be compiled."""
    config.update("jaxtyping_disable", True)
    yield
    config.update("jaxtyping_disable", False)


def plain(**sizes: object) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = (x.detach() for x in tensors(**{"dtype": torch.float32, **sizes}))
    return q, k, v


def held(call: Call, output: Tensor) -> None:
    """The output is accepted beside a plain run in its own dtype."""
    accept(output, reference(call, call.q.dtype).output, reference(call).output)


# --- the dtype of a mask is not that of the call ---


@pytest.mark.parametrize("engine", NAMES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("of_mask", DTYPES, ids=str)
def test_a_float_mask_of_any_dtype(engine: str, dtype: torch.dtype, of_mask: torch.dtype) -> None:
    q, k, v = plain(dtype=dtype)
    mask = hw.from_tensor(3 * torch.randn(QUERIES, KEYS, dtype=of_mask), "q k")
    call = Call.of(q, k, v, mask=mask)
    (chosen,) = (one for one in ENGINES if engine == one.NAME)
    if not can_run(chosen, call):
        return
    with torch.no_grad():
        held(call, chosen.run(call).output)


# --- forward-mode derivatives of everything that is learned ---


def _biased(tensor: Tensor) -> dict[str, object]:
    return {"mask": hw.from_tensor(tensor, "q k") & hw.causal()}


def _sunk(tensor: Tensor) -> dict[str, object]:
    return {"sinks": tensor, "mask": hw.causal()}


@pytest.mark.parametrize("engine", ["auto", *NAMES])
@pytest.mark.parametrize(
    ("options", "size"), [(_biased, (KEYS, KEYS)), (_sunk, (HEADS,))], ids=["mask", "sinks"]
)
def test_a_tangent_is_right_or_the_engine_refuses(
    engine: str, options: Callable[[Tensor], dict[str, object]], size: tuple[int, ...]
) -> None:
    inputs = (*plain(queries=KEYS), torch.randn(size), torch.randn(size))

    def tangent(run: Callable[..., Tensor], dtype: torch.dtype = torch.float32) -> Tensor:
        q, k, v, at, direction = (x.to(dtype) for x in inputs)
        with forward_ad.dual_level():
            output = run(q, k, v, **options(forward_ad.make_dual(at, direction)))
            found = forward_ad.unpack_dual(output).tangent
        assert found is not None
        return found

    def definition(*rows: Tensor, **given: object) -> Tensor:
        return reference(Call.of(*rows, **given), rows[0].dtype).output

    try:
        found = tangent(partial(hw.attend, engine=engine))
    except hw.EngineRefused:
        assert engine != "auto"
    else:
        accept(found, tangent(definition), tangent(definition, torch.float64))


# --- scores that overflow a half ---


@pytest.mark.parametrize("engine", NAMES)
def test_scores_beyond_a_half_are_scaled_before_they_overflow(engine: str) -> None:
    q = torch.full((1, 1, 4, 64), 32.5, dtype=torch.float16)
    call = Call.of(q, q, q)
    (chosen,) = (one for one in ENGINES if engine == one.NAME)
    if can_run(chosen, call):
        assert torch.equal(chosen.run(call).output, q)


# --- sizes of 0 ---


@pytest.mark.parametrize("position", every_position(), ids=repr)
@pytest.mark.parametrize(("batch", "queries", "keys"), [(0, 5, 7), (2, 0, 7), (2, 5, 0), (2, 0, 0)])
def test_a_size_of_0_gives_0_or_nothing(
    position: hw.Position, batch: int, queries: int, keys: int
) -> None:
    q, k, v = plain(queries=queries, keys=keys, batch=batch)
    output = hw.attend(q, k, v, position=position)
    assert output.shape == (*q.shape[:3], v.shape[3])
    assert not output.any()


@pytest.mark.parametrize("position", [hw.NoPosition(), hw.Shaw(3, DIM)], ids=repr)
def test_no_heads_are_no_output(position: hw.Position) -> None:
    q = torch.randn(2, 0, 5, DIM)
    assert hw.attend(q, q, q, position=position).shape == (2, 0, 5, DIM)


@pytest.mark.parametrize("mask", [hw.documents([]), hw.documents(torch.zeros(0).long())], ids=repr)
@pytest.mark.parametrize("engine", ["auto", "eager"])
def test_no_documents_and_no_keys(mask: Mask, engine: str) -> None:
    q, k, v = plain(queries=3, keys=0)
    assert not hw.attend(q, k, v, mask=mask, engine=engine).any()


# --- vmap over what a mask holds ---


@pytest.mark.parametrize(
    ("of", "values"),
    [
        (lambda x: hw.from_tensor(x, "q k"), lambda: torch.randn(3, QUERIES, KEYS)),
        (lambda x: hw.from_tensor(x, "q k"), lambda: torch.rand(3, QUERIES, KEYS) > 0.3),
        (hw.padding, lambda: torch.tensor([[4, 7], [0, 2], [5, 1]])),
        (hw.padding, lambda: torch.rand(3, 2, KEYS) > 0.3),
        (hw.prefix, lambda: torch.tensor([[4, 7], [0, 2], [5, 1]])),
        (hw.documents, lambda: torch.randint(0, 3, (3, KEYS))),
    ],
    ids=["float", "boolean", "lengths", "real keys", "prefix", "documents"],
)
def test_vmap_over_a_mask(of: Callable[[Tensor], Mask], values: Callable[[], Tensor]) -> None:
    q, k, v = plain()
    each = values()
    together = vmap(lambda one: hw.attend(q, k, v, mask=of(one)))(each)
    for output, one in zip(together, each, strict=True):
        held(Call.of(q, k, v, mask=of(one)), output)


# --- flex ---


@pytest.mark.slow
@pytest.mark.parametrize(
    "mask",
    [hw.padding([4]), hw.prefix([3]), hw.prefix(3), hw.padding(torch.rand(1, KEYS) > 0.4)],
    ids=repr,
)
def test_one_length_for_every_sample_on_flex(mask: Mask) -> None:
    call = Call.of(*plain(), mask=mask)
    (flex,) = (engine for engine in ENGINES if engine.NAME == "flex")
    with torch.no_grad():
        held(call, flex.run(call).output)


class Kerple(hw.Position):
    """A bias of the distance alone, of a class that no engine names."""

    stages, by_distance = frozenset({Stage.SCORES}), True

    def relative(self, difference: Tensor, like: Tensor, scale: float) -> RelativeTerms:
        del scale
        numbers = -(1 + difference.abs()).log().to(torch.promote_types(like.dtype, torch.float32))
        return RelativeTerms(numbers=numbers.expand(HEADS, -1))

    def bias(self, q: Tensor, query: Tensor, key: Tensor, scale: float) -> Tensor:
        del scale
        return -(1 + (key - query[:, None]).abs()).log().to(q.dtype)[None, None]


@pytest.mark.slow
def test_any_bias_of_the_distance_on_flex() -> None:
    call = Call.of(*plain(), position=Kerple())
    (flex,) = (engine for engine in ENGINES if engine.NAME == "flex")
    with torch.no_grad():
        held(call, flex.run(call).output)


def test_rotary_takes_a_base_or_frequencies() -> None:
    assert hw.Rotary(4, pairs="halves", frequencies=Frequencies(5e5)).base == 5e5
    with pytest.raises(hw.HeadwiseError, match="cannot be combined"):
        hw.Rotary(4, pairs="halves", base=5e5, frequencies=Frequencies())
    with pytest.raises(hw.HeadwiseError, match="base must be above 1 and finite, got 0"):
        hw.Rotary(4, pairs="halves", base=0)


# --- autocast ---


@pytest.mark.parametrize("position", every_position(), ids=repr)
@pytest.mark.parametrize(
    ("dtype", "autocast"),
    [(torch.bfloat16, torch.float16), (torch.float16, torch.bfloat16)],
    ids=str,
)
def test_one_half_under_the_autocast_of_the_other(
    position: hw.Position, dtype: torch.dtype, autocast: torch.dtype
) -> None:
    q, k, v = plain(dtype=dtype)
    with torch.autocast("cpu", autocast):
        output = hw.attend(q, k, v, position=position, mask=hw.causal())
    assert output.isfinite().all()


# --- masks that broadcast, integers of numpy ---


@pytest.mark.parametrize("engine", ["auto", "eager", "tiled"])
@pytest.mark.parametrize(
    ("shape", "layout"),
    [
        ((2, 1, 1, KEYS), None),
        ((HEADS, 1, KEYS), "h q k"),
        ((2, 1, KEYS), "b q k"),
        ((1, KEYS), "q k"),
        ((1, HEADS, QUERIES, 1), None),
        ((2, 1, QUERIES, 1), "b h q k"),
    ],
)
@pytest.mark.parametrize("floats", [True, False])
def test_a_tensor_mask_broadcasts_over_queries_and_keys(
    engine: str, shape: tuple[int, ...], layout: str | None, floats: bool
) -> None:
    tensor = torch.randn(shape) if floats else torch.rand(shape) > 0.4
    q, k, v = plain()
    full = tensor
    while full.dim() < 4:
        full = full[None] if layout in ("q k", "h q k") else full[:, None]
    expected = Call.of(q, k, v, mask=hw.from_tensor(full.expand(2, HEADS, QUERIES, KEYS)))
    held(expected, hw.attend(q, k, v, mask=hw.from_tensor(tensor, layout), engine=engine))


@pytest.mark.parametrize(
    ("numpy", "python"),
    [
        (lambda n: hw.window(n(3), n(0)), "window(3, 0)"),
        (lambda n: hw.dilated(n(2), n(1), step=n(2)), "dilated(2, 1, step=2)"),
        (lambda n: hw.strided(n(3)), None),
        (lambda n: hw.fixed(n(3), n(1)), "fixed(3, 1)"),
        (lambda n: hw.every(n(3)), "every(3)"),
        (lambda n: hw.padding([n(3), n(1)]), "padding([3, 1])"),
        (lambda n: hw.prefix(n(3)), "causal() | padding([3])"),
        (lambda n: hw.global_tokens([n(0), n(4)]), None),
        (lambda n: hw.documents([n(3), n(4)]), None),
        (lambda n: hw.random_blocks(n(2), n(1), seed=n(5)), "random_blocks(2, 1, seed=5)"),
        (lambda n: hw.lsh(n(2), chunk=n(2), seed=n(0)), None),
    ],
)
@pytest.mark.parametrize("integer", [np.int64, np.int32, np.uint8])
def test_numpys_integers_are_integers(
    numpy: Callable[[type], Mask], python: str | None, integer: type
) -> None:
    mask = numpy(integer)
    assert mask.name == (python or numpy(int).name)
    q, k, v = plain(queries=KEYS)
    for engine in ("auto", "tiled"):
        try:
            found = hw.attend(q, k, v, mask=mask, offset=integer(0), engine=engine)
        except hw.EngineRefused:
            continue
        assert torch.equal(found, hw.attend(q, k, v, mask=numpy(int), engine=engine))


def test_a_tokenizers_integers_are_told_to_become_booleans() -> None:
    with pytest.raises(hw.HeadwiseError, match=r"1 on real keys.*\.bool\(\)"):
        hw.padding(torch.tensor([[1, 1, 0], [1, 0, 0]]))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("engine", ["eager", "rows", "tiled", "sdpa"])
def test_a_scale_of_zero_gives_the_mean_of_the_values(engine, dtype):
    for length in (5, 40, 70):
        q, k, v = (torch.randn(2, 4, length, 8, dtype=dtype) for _ in range(3))
        call = Call.of(q, k, v, scale=0.0)
        output = hw.attend(q, k, v, scale=0.0, engine=engine)
        accept(output, reference(call, dtype).output, reference(call).output)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("engine", ["eager", "sdpa", "tiled", "rows", "auto"])
def test_the_dtype_of_the_output_under_autocast_is_that_of_pytorch(engine, dtype):
    q, k, v = (torch.randn(1, 2, 40, 8, dtype=dtype) for _ in range(3))
    with torch.autocast("cpu", torch.bfloat16):
        expected = torch.nn.functional.scaled_dot_product_attention(q, k, v).dtype
        assert hw.attend(q, k, v, mask=hw.causal(), engine=engine).dtype == expected
        assert hw.attend(q, k, v, need=["logsumexp"]).logsumexp.dtype != torch.bfloat16


def test_a_far_offset_costs_no_more_than_a_near_one():
    layout, q = torch.ones(2, 2, dtype=torch.bool), torch.randn(1, 1, 4, 8)
    keys = torch.randn(1, 1, 40, 8)
    tracemalloc.start()
    hw.attend(q, keys, keys, mask=hw.block_sparse(layout, 2), offset=50_000_000, engine="tiled")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 5_000_000
