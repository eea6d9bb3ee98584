"""LSH attention: the mask compared with its definition, and every engine under this mask."""

import pytest
import torch
from torch.autograd import gradcheck

import headwise as hw
from headwise.call import Call
from headwise.engines import eager, lsh, sdpa, tiled
from headwise.errors import BadType, BadValue
from headwise.masks import appended
from headwise.masks.expression import parse
from headwise.reference import reference
from headwise.verify.oracle.tolerance import accept
from tests.examples import GROUPS, HEADS, accept_with_gradients, tensors

ENGINES = [pytest.param(engine, id=engine.NAME) for engine in (eager, sdpa, tiled, lsh)]


def bucket(vector: list[float], rotations: list[torch.Tensor]) -> int:
    """The definition: of all rotated axes and then their opposites the nearest; a digit each."""
    number = 0
    for rotation in rotations:
        axes = [sum(a * b for a, b in zip(vector, axis, strict=True)) for axis in rotation]
        found = [*axes, *(-axis for axis in axes)]
        number = number * len(found) + found.index(max(found))
    return number


def sees(q, k, real: list[int], *, seed: int, number: int, factors: list[int], chunk: int):
    """Who sees whom in one round of one sample, head by head, pair by pair."""
    heads, groups, dim = q.shape[0], k.shape[0], q.shape[2]
    offset = k.shape[1] - q.shape[1]
    drawn = torch.Generator().manual_seed(seed * 1_000_003 + number)
    drawings = [torch.randn(groups, factor // 2, dim, generator=drawn) for factor in factors]
    allowed = torch.zeros(heads, q.shape[1], k.shape[1], dtype=torch.bool)
    for h in range(heads):
        g = h // (heads // groups)
        own = [drawing[g].double() for drawing in drawings]
        order = sorted((bucket(k[g, j].tolist(), own), j) for j in real)
        chunks = [order[start : start + chunk] for start in range(0, len(order), chunk)]
        for i in range(q.shape[1]):
            mine = (bucket(q[h, i].tolist(), own), i + offset)
            place = min(sum(other < mine for other in order), len(order) - 1)
            if place < 0:
                continue
            for _, j in chunks[place // chunk] + chunks[place // chunk - 1]:
                allowed[h, i, j] = True
    return allowed


def looked(mask, q, k) -> torch.Tensor:
    return Call.of(q, k, k, mask=mask).allowed()


@pytest.mark.parametrize(("queries", "keys"), [(17, 17), (5, 19), (19, 5), (1, 13), (13, 1)])
@pytest.mark.parametrize("factors", [[2], [6], [2, 4]])
def test_the_pattern_is_the_definition_pair_by_pair(queries, keys, factors):
    q, k, _ = (t.detach() for t in tensors(queries, keys))
    mask = hw.lsh(2, chunk=3, buckets=factors, seed=5)
    for sample, allowed in enumerate(looked(mask, q, k)):
        words = {"seed": 5, "factors": factors, "chunk": 3}
        rounds = [
            sees(q[sample], k[sample], list(range(keys)), number=n, **words) for n in range(2)
        ]
        assert torch.equal(allowed, rounds[0] | rounds[1])


def test_padded_keys_are_behind_the_others_and_seen_by_nobody():
    q, k, _ = (t.detach() for t in tensors(17, 17))
    real = torch.rand(2, 17) > 0.4
    allowed = looked(hw.padding(real) & hw.lsh(1, chunk=3, buckets=4, seed=2), q, k)
    for sample in range(2):
        listed = real[sample].nonzero()[:, 0].tolist()
        words = {"seed": 2, "factors": [4], "chunk": 3, "number": 0}
        assert torch.equal(allowed[sample], sees(q[sample], k[sample], listed, **words))


@pytest.mark.parametrize(("keys", "buckets"), [(7, [6]), (130, [10, 10]), (160, [12, 10])])
def test_buckets_of_none_are_two_chunks_each(keys, buckets):
    """2 n / 3 rounded up to even, and two factors beyond 64."""
    q, k, _ = (t.detach() for t in tensors(keys, keys, groups=HEADS, batch=1))
    by_default = looked(hw.lsh(1, chunk=3, seed=0), q, k)
    assert torch.equal(by_default, looked(hw.lsh(1, chunk=3, seed=0, buckets=buckets), q, k))


def masks():
    return [
        hw.lsh(1, chunk=5, seed=0),
        hw.lsh(3, chunk=4, seed=1),
        hw.lsh(2, chunk=1000, seed=1),
        hw.lsh(2, chunk=1, buckets=2, seed=3),
        hw.causal() & hw.lsh(2, chunk=5, seed=0),
        hw.causal() & hw.lsh(2, chunk=3, seed=0, own=False),
        hw.lsh(3, chunk=4, seed=2) & hw.padding([17, 0]),
        hw.padding([3, 29]) & hw.causal() & hw.lsh(2, chunk=5, seed=0),
        hw.lsh(2, chunk=4, seed=2) | hw.window(3, 1),
        ~hw.lsh(1, chunk=4, seed=2),
        hw.lsh(1, chunk=3, seed=2) | hw.lsh(1, chunk=4, seed=3),
        hw.window(9, 9) & hw.lsh(2, chunk=4, seed=4) & hw.padding([29, 11]),
        hw.per_head([hw.causal(), *(hw.lsh(1, chunk=n + 2, seed=n) for n in range(HEADS - 1))]),
        appended(hw.lsh(2, chunk=4, seed=2), 2),
        hw.lsh(2, chunk=5, seed=6) & hw.from_tensor(torch.randn(HEADS, 29, 29), "h q k"),
    ]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("groups", [1, GROUPS, HEADS])
@pytest.mark.parametrize("number", range(len(masks())))
def test_output_and_gradients_are_those_of_the_oracle(engine, dtype, groups, number):
    call = Call.of(*tensors(29, 29, groups=groups, dtype=dtype), mask=masks()[number])
    for reason in engine.why_not(call):
        pytest.skip(reason.en)
    accept_with_gradients(call, engine.run(call))


@pytest.mark.parametrize("engine", ENGINES)
def test_case_26_length_30_in_chunks_of_4(engine):
    call = Call.of(*tensors(30, 30, dtype=torch.float32), mask=hw.lsh(2, chunk=4, seed=0))
    accept_with_gradients(call, engine.run(call))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("length", [30, 29])
def test_case_27_two_chunks_that_look_one_back_are_exact_attention(engine, length):
    q, _, v = tensors(length, length, groups=HEADS, dtype=torch.float32)
    k = torch.nn.functional.normalize(q, dim=-1)
    mask = hw.lsh(1, chunk=15, buckets=2, seed=0)
    result, whole = engine.run(Call.of(q, k, v, mask=mask)), Call.of(q, k, v)
    accept(result.output, reference(whole, torch.float32).output, reference(whole).output)


def test_the_same_seed_and_input_give_the_same_answer_and_no_state_is_used():
    q, k, v = tensors(29, 29, dtype=torch.float32)
    before = torch.get_rng_state()
    first = hw.attend(q, k, v, mask=hw.lsh(2, chunk=4, seed=7))
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(3)
    assert torch.equal(hw.attend(q, k, v, mask=hw.lsh(2, chunk=4, seed=7)), first)
    assert not torch.equal(hw.attend(q, k, v, mask=hw.lsh(2, chunk=4, seed=8)), first)


def test_more_rounds_see_what_fewer_see_and_more():
    q, k, _ = tensors(29, 29)
    one, two = (looked(hw.lsh(n, chunk=3, seed=0), q, k) for n in (1, 2))
    assert (two | ~one).all()
    assert two.sum() > one.sum()


def test_permuting_the_batch_permutes_the_output():
    q, k, v = tensors(29, 29, dtype=torch.float32, batch=3)
    order, real = torch.tensor([2, 0, 1]), torch.tensor([29, 11, 17])
    mask, moved = (hw.lsh(2, chunk=4, seed=7) & hw.padding(r) for r in (real, real[order]))
    output = hw.attend(q, k, v, mask=mask)
    assert torch.equal(hw.attend(q[order], k[order], v[order], mask=moved), output[order])


def test_the_length_of_a_vector_changes_no_bucket():
    q, k, _ = tensors(29, 29)
    mask = hw.lsh(2, chunk=4, seed=7)
    lengths = 2.0 ** torch.randint(-3, 4, (29, 1))
    assert torch.equal(looked(mask, q, k), looked(mask, q * lengths, k / lengths))


def test_a_rotary_position_is_hashed_as_it_meets_in_the_scores():
    q, k, _ = tensors(29, 29, groups=HEADS)
    position = hw.Rotary(11, pairs="halves", rotary_dim=10)
    call = Call.of(q, k, k, mask=hw.lsh(2, chunk=4, seed=7), position=position)
    turned = position.content(q, k, call.shape)
    assert torch.equal(call.allowed(), looked(hw.lsh(2, chunk=4, seed=7), *turned))
    assert not torch.equal(call.allowed(), looked(hw.lsh(2, chunk=4, seed=7), q, k))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("junk", [torch.nan, torch.inf, 1e4])
def test_added_padding_changes_nothing_whatever_stands_in_it(engine, junk):
    q, k, v = (t.detach() for t in tensors(29, 29, dtype=torch.float32))
    mask = hw.lsh(2, chunk=4, seed=7)
    short = Call.of(q[:, :, :17], k[:, :, :17], v[:, :, :17], mask=mask)
    k[:, :, 17:], v[:, :, 17:] = junk, junk
    long = Call.of(q, k, v, mask=mask & hw.padding([17, 17]))
    assert torch.equal(long.allowed()[:, :, :17, :17], short.allowed())
    output = engine.run(long).output
    oracle, plain = reference(short), reference(short, torch.float32)
    accept(output[:, :, :17], plain.output, oracle.output)


def test_without_own_the_own_key_is_the_last_resort():
    """The first token of a causal row has nothing else, every other has weight 0 on itself."""
    q, _, v = tensors(29, 29, groups=HEADS, dtype=torch.float32)
    mask = hw.causal() & hw.lsh(2, chunk=5, seed=0, own=False)
    weights = hw.attend(q, q, v, mask=mask, need=["weights"]).weights
    allowed = Call.of(q, q, v, mask=mask).allowed()
    lonely = allowed.sum(-1) == 1
    diagonal = weights.diagonal(dim1=-2, dim2=-1)
    assert allowed.diagonal(dim1=-2, dim2=-1).all()
    assert torch.equal(diagonal, lonely.float())
    assert lonely[:, :, 0].all()
    assert lonely.float().mean() < 0.5


def test_the_hashing_has_no_gradient():
    call = Call.of(*tensors(29, 29), mask=hw.lsh(2, chunk=4, seed=0))
    assert not any(t.requires_grad for t in (call.mask.keys, call.mask.queries, call.mask.real))


def test_eager_has_the_derivatives_of_a_fixed_pattern():
    q, k, v = (torch.randn(1, 2, 7, 3).double().requires_grad_() for _ in "qkv")
    mask = hw.lsh(2, chunk=2, seed=0)
    assert gradcheck(lambda *qkv: hw.attend(*qkv, mask=mask, engine="eager"), (q, k, v))


@pytest.mark.parametrize("sizes", [(0, 7, 2), (5, 0, 2), (5, 7, 0), (0, 0, 2)])
def test_empty_sizes_give_empty_or_zero(sizes):
    queries, keys, batch = sizes
    q, k, v = tensors(queries, keys, batch=batch, dtype=torch.float32)
    output = hw.attend(q, k, v, mask=hw.lsh(2, chunk=3, seed=0))
    assert output.shape == (batch, HEADS, queries, 13)
    assert not output.any()
    output.sum().backward()


def test_a_module_takes_it_with_a_padding_mask():
    x = torch.randn(2, 29, 12)
    padding = torch.arange(29) >= torch.tensor([[29], [17]])
    module = hw.MultiheadAttention(12, 3, mask=hw.lsh(2, chunk=4, seed=0), batch_first=True).eval()
    alone = module(x[1:, :17], x[1:, :17], x[1:, :17], need_weights=False)[0]
    both = module(x, x, x, key_padding_mask=padding, need_weights=False)[0]
    w = [getattr(module, f"{name}_proj") for name in "qkv"]
    q, k, v = (p(x).unflatten(-1, (3, 4)).transpose(1, 2)[1:, :, :17] for p in w)
    call = Call.of(q, k, v, mask=module.mask)
    oracle, plain = (reference(call, t).output for t in (torch.float64, torch.float32))
    inverse = torch.linalg.inv(module.out_proj.weight.double())
    for output in (alone[0], both[1, :17]):
        heads = ((output.double() - module.out_proj.bias.double()) @ inverse.T).float()
        accept(heads.unflatten(-1, (3, 4)).transpose(0, 1)[None], plain, oracle)


def test_it_prints_itself_and_draws_itself():
    mask = hw.causal() & hw.lsh(2, chunk=3, buckets=[2, 4], seed=5, own=False)
    assert repr(mask) == "causal() & lsh(2, chunk=3, buckets=[2, 4], seed=5, own=False)"
    assert parse(repr(mask)) == mask
    drawn = hw.lsh(1, chunk=3, seed=0).draw(13)
    rows = [row.count("■") for row in drawn.splitlines()]
    assert set(rows) == {4, 6}  # two chunks of 3, or the last, of 1, and its neighbour
    assert drawn == hw.lsh(1, chunk=3, seed=0).draw(13)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: hw.lsh(0, seed=0), "lsh: rounds must be >= 1, got 0"),
        (lambda: hw.lsh(1, chunk=0, seed=0), "lsh: chunk must be >= 1, got 0"),
        (lambda: hw.lsh(1, seed=-1), "lsh: seed must be >= 0, got -1"),
        (lambda: hw.lsh(1, seed=0, buckets=3), r"buckets must be even, .* got 3; give more"),
        (lambda: hw.lsh(1, seed=0, buckets=[]), r"buckets must be even, .* got \[\]"),
        (lambda: hw.lsh(1, seed=0, buckets=[2**12, 2**12, 2]), "16777216 in total, got"),
        (lambda: hw.lsh(1, seed=0, buckets=2**13), "at most 4096 per rotation"),
        (lambda: hw.lsh(1, seed=0, buckets=0), "buckets must be >= 2, got 0; None means"),
        (lambda: ~hw.lsh(1, seed=0, own=False), "no meaning under '~'"),
    ],
)
def test_a_wrong_value_is_refused(make, message):
    with pytest.raises(BadValue, match=message):
        make()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: hw.lsh(1.0, seed=0), "lsh: rounds must be an integer, got 1.0"),
        (lambda: hw.lsh(1, seed=None), "lsh: seed must be an integer, got None"),
        (lambda: hw.lsh(1, seed=0, buckets="44"), "lsh: buckets must be an integer, got '44'"),
        (lambda: hw.lsh(1, seed=0, own=None), "own must be True or False, got None"),
    ],
)
def test_a_wrong_type_is_refused(make, message):
    with pytest.raises(BadType, match=message):
        make()


def test_without_queries_and_keys_there_is_no_rule():
    with pytest.raises(BadValue, match="depends on the queries and keys of a call; pass it"):
        hw.lsh(1, seed=0).dense(Call.of(*tensors()).shape)
