"""Pages by a kernel are windows up to rounding: each kernel, and a whole sampler over pages.

JAX's own kernels run here in interpret mode; what is compiled for a TPU is only lowered. A
plain-JAX kernel of the same signature takes their place where whole programs run.
"""

import dataclasses
from contextlib import AbstractContextManager, nullcontext
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from headrace.pipeline.errors import ConfigError
from headrace.pipeline.models.attention import Sight
from headrace.pipeline.models.config import ModelConfig
from headrace.pipeline.models.model import decoder_model
from headrace.pipeline.models.parameters import init, unstack
from headrace.pipeline.models.quantize import sampler_axes
from headrace.pipeline.models.traits import AttentionTraits, Traits
from headrace.pipeline.sampler.attention_kernels import gpu_paged_attention, tpu_paged_attention
from headrace.pipeline.sampler.attention_paths import (
    WINDOWS,
    AttentionPath,
    Spots,
    by_heads,
    choose_path,
    pages_path,
    platform_of,
)
from headrace.pipeline.sampler.cache import LayerCache, cells
from headrace.pipeline.sampler.config import SamplerConfig
from headrace.pipeline.sampler.decode import decode
from headrace.pipeline.sampler.engine import Engine
from headrace.pipeline.sampler.inverse_cdf import draw_from_mass
from headrace.pipeline.sampler.layout import Layout, leading, make_layout
from headrace.pipeline.sampler.programs import compile_programs
from headrace.pipeline.sampler.rows import DecodeInput, idle_decode
from headrace.pipeline.sampler.state import SamplerState, Views, initial_state
from headrace.pipeline.types import Completion
from headrace.sharding.mesh import make_mesh
from tests.learner.toy import quick_jit
from tests.sampler.helpers import (
    CONFIG,
    MODEL,
    VOCAB,
    make_request,
    native_programs,
    sampled,
    sampler_params,
)

ROWS, PAGES = 4, 11
LOWERED = "tpu_custom_call"


class Case(NamedTuple):
    """Sizes of one kernel call."""

    kernel: str
    kv_heads: int
    group: int
    width: int
    page: int
    table: int


CASES = (
    Case("gpu", 2, 2, 16, 16, 2),
    Case("gpu", 1, 3, 32, 32, 3),
    Case("tpu", 2, 2, 128, 16, 2),
    Case("tpu", 1, 8, 128, 32, 2),
    Case("plain", 2, 3, 6, 4, 3),
)


def plain_kernel(
    queries: jax.Array, pages: LayerCache, tables: jax.Array, lengths: jax.Array
) -> jax.Array:
    """What a kernel computes, page by page, with the running maximum of flash attention."""
    kv_heads, _, size, width = pages.keys.shape
    grouped = queries.reshape(len(queries), kv_heads, -1, width)
    best = jnp.full(grouped.shape[:3], -jnp.inf)
    mass, mixed = jnp.zeros_like(best), jnp.zeros_like(grouped)
    for index in range(tables.shape[1]):
        keys, values = (jnp.moveaxis(of[:, tables[:, index]], 0, 1) for of in pages)
        seen = (index * size + jnp.arange(size))[None] < lengths[:, None]
        scores = jnp.einsum("skgh,skph->skgp", grouped, keys)
        scores = jnp.where(seen[:, None, None], scores, -jnp.inf)
        higher = jnp.maximum(best, scores.max(axis=-1))
        weights, fade = jnp.exp(scores - higher[..., None]), jnp.exp(best - higher)
        mass = mass * fade + weights.sum(axis=-1)
        mixed = mixed * fade[..., None] + jnp.einsum("skgp,skph->skgh", weights, values)
        best = higher
    return (mixed / mass[..., None]).reshape(queries.shape)


KERNELS = {
    "gpu": partial(gpu_paged_attention, interpret=True),
    "tpu": tpu_paged_attention,
    "plain": plain_kernel,
}


def interpreted(kernel: str) -> AbstractContextManager[Any]:
    return pltpu.force_tpu_interpret_mode() if kernel == "tpu" else nullcontext()


def bf16(values: np.ndarray) -> jax.Array:
    """Values that bf16 holds, since the TPU's kernel rounds to it."""
    return jnp.asarray(values, jnp.float32).astype(jnp.bfloat16).astype(jnp.float32)


class Step(NamedTuple):
    """One step of a dispatch: a pool, and what comes to it."""

    pages: LayerCache
    queries: jax.Array
    new: LayerCache
    spots: Spots


def random_step(case: Case, seed: int) -> Step:
    rng = np.random.default_rng(seed)
    pool = (case.kv_heads, PAGES, case.page, case.width)
    one = (case.kv_heads, ROWS, case.width)
    tables = rng.permutation(np.arange(1, PAGES))[: ROWS * case.table]
    if len(tables) < ROWS * case.table:  # the last rows share pages, and don't write
        tables = np.resize(tables, ROWS * case.table)
    window = case.table * case.page
    active = rng.random(ROWS) < 0.7
    active[(PAGES - 1) // case.table :] = False
    # A row that isn't active may stand beyond its window.
    positions = np.where(active, rng.integers(0, window, ROWS), rng.integers(0, 3 * window, ROWS))
    spots = Spots(
        jnp.asarray(tables.reshape(ROWS, -1), jnp.int32),
        jnp.asarray(positions, jnp.int32),
        jnp.asarray(active),
    )
    queries = rng.normal(size=(ROWS, case.kv_heads * case.group, case.width))
    return Step(
        pages=LayerCache(bf16(rng.normal(size=pool)), bf16(rng.normal(size=pool))),
        queries=bf16(queries),
        new=LayerCache(bf16(rng.normal(size=one)), bf16(rng.normal(size=one))),
        spots=spots,
    )


def step_once(path: AttentionPath, step: Step) -> tuple[jax.Array, LayerCache]:
    """Open, append, attend and close; returns the mixed values and the pages."""
    spots = step.spots
    rows, pages = spots.tables.shape
    size = step.pages.keys.shape[2]
    views = path.new_views([step.pages], rows, pages * size)
    [seen] = path.open([step.pages], views, spots.tables, jnp.ones(rows, jnp.bool_))
    seen = path.append(seen, step.new, spots)
    mixed = path.attend(step.queries, seen, spots, Sight())
    positions = spots.positions[:, None]
    where = cells(spots.tables, positions, spots.active[:, None], size)
    [filled], _ = path.close([step.pages], [seen], positions, where)
    return mixed, filled


take_step = quick_jit(step_once, static_argnums=0)


@cache
def path_of(kernel: str) -> AttentionPath:
    return pages_path(KERNELS[kernel])


def assert_step_is_the_same(case: Case, seed: int) -> None:
    step = random_step(case, seed)
    expected, expected_pages = take_step(WINDOWS, step)
    with interpreted(case.kernel):
        mixed, pages = take_step(path_of(case.kernel), step)
    active = np.asarray(step.spots.active)
    np.testing.assert_allclose(mixed[active], expected[active], rtol=1e-5, atol=1e-5)
    assert np.isfinite(mixed).all()
    for left, right in zip(pages, expected_pages, strict=True):
        np.testing.assert_array_equal(left[:, 1:], right[:, 1:])  # page 0 is a bin


# JAX 0.12 says that it will drop the kernel for GPUs.
deprecated = pytest.mark.filterwarnings("ignore:.*gpu.paged_attention is deprecated")


@deprecated
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=f"{case.kernel}-{case.group}", marks=[pytest.mark.slow] * slow)
        for case, slow in zip(CASES, (0, 1, 0, 1, 0), strict=True)
    ],
)
def test_a_step_over_pages_is_a_step_over_windows(case: Case) -> None:
    for seed in range(3):
        assert_step_is_the_same(case, seed)


@settings(max_examples=40)
@given(st.integers(0, 2**32))
def test_a_step_over_pages_is_a_step_over_windows_whatever_the_rows_hold(seed: int) -> None:
    assert_step_is_the_same(CASES[-1], seed)


@deprecated
@pytest.mark.slow
@pytest.mark.parametrize("kernel", ["gpu", "tpu"])
def test_a_longer_window_changes_no_bit(kernel: str) -> None:
    case = Case(kernel, 1, 2, 128, 64, 2)
    step = random_step(case, 1)
    spots = step.spots
    longer = jnp.concatenate([spots.tables, jnp.zeros_like(spots.tables)], axis=1)
    take = jax.jit(step_once, static_argnums=0)
    with interpreted(kernel):
        mixed, _ = take(path_of(kernel), step)
        other, _ = take(path_of(kernel), step._replace(spots=spots._replace(tables=longer)))
    active = np.asarray(spots.active)
    assert active.any()
    np.testing.assert_array_equal(mixed[active], other[active])


@deprecated
@pytest.mark.parametrize("case", [CASES[0], CASES[2]], ids=["gpu", "tpu"])
def test_a_cache_of_bf16_is_read_as_windows_read_it(case: Case) -> None:
    step = jax.tree.map(_as_bf16, random_step(case, 0))
    expected, _ = take_step(WINDOWS, step)
    with interpreted(case.kernel):
        mixed, _ = take_step(path_of(case.kernel), step)
    active = np.asarray(step.spots.active)
    assert mixed.dtype == jnp.bfloat16
    left, right = (of.astype(jnp.float32)[active] for of in (mixed, expected))
    np.testing.assert_allclose(left, right, atol=2e-2)


def _as_bf16(array: jax.Array) -> jax.Array:
    return array.astype(jnp.bfloat16) if array.dtype == jnp.float32 else array


def test_the_kernel_of_tpus_rounds_a_f32_cache_to_bf16() -> None:
    case = CASES[2]
    step = random_step(case, 0)
    pages = jax.tree.map(partial(jnp.multiply, 1.001), step.pages)  # no bf16 numbers any more
    everyone = step.spots._replace(
        positions=jnp.full(ROWS, 20, jnp.int32), active=jnp.ones(ROWS, jnp.bool_)
    )
    step = step._replace(pages=pages, spots=everyone)
    expected, _ = take_step(WINDOWS, step)
    with interpreted("tpu"):
        mixed, _ = take_step(path_of("tpu"), step)
    difference = np.abs(mixed - expected).max()
    assert 1e-4 < difference < 2e-2


# A whole sampler over pages.


def sample(programs: Any) -> list[Completion]:
    """Twenty requests at once, in a sampler that is short of pages."""
    engine = Engine(CONFIG, decoder_model(MODEL, VOCAB), programs=programs)
    engine.publish(sampler_params(0), 0)
    for seed in range(20):
        request = make_request(seed, temperature=(1.0, 0.6, 1.7, 0.0)[seed % 4])
        # Some budgets are longer than a dispatch, some stop inside one.
        budget = (2, 7, 18)[seed % 3]
        engine.submit(seed, dataclasses.replace(request, max_tokens=budget))
    done: dict[int, Completion] = {}
    while engine.has_work:
        done.update(engine.step())
    return [done[seed] for seed in range(20)]


@pytest.mark.slow
def test_a_sampler_over_pages_draws_the_tokens_of_one_over_windows() -> None:
    over_pages = compile_programs(CONFIG, decoder_model(MODEL, VOCAB), path=path_of("plain"))
    expected = sample(native_programs())
    assert {completion.finish for completion in expected} == {"stop", "length"}
    for left, right in zip(sample(over_pages), expected, strict=True):
        np.testing.assert_array_equal(left.tokens, right.tokens)
        np.testing.assert_allclose(left.logprobs, right.logprobs, atol=1e-5)
        assert left.finish == right.finish


# Which path is chosen.

WIDE = dataclasses.replace(MODEL, head_width=128)
FITS = SamplerConfig(page_tokens=16)


def chosen(platform: str, attention: Any, *, model: ModelConfig = WIDE) -> AttentionPath:
    config = dataclasses.replace(FITS, attention=attention)
    return choose_path(config, decoder_model(model, VOCAB), platform=platform, mesh=None)


@pytest.mark.parametrize(
    ("platform", "attention", "kernel"),
    [
        ("cpu", "auto", None),
        ("gpu", "auto", None),
        ("tpu", "auto", tpu_paged_attention),
        ("other", "auto", None),
        ("cpu", "windows", None),
        ("gpu", "windows", None),
        ("tpu", "windows", None),
        ("gpu", "pages", gpu_paged_attention),
        ("tpu", "pages", tpu_paged_attention),
    ],
)
def test_the_platform_decides_where_the_setting_leaves_it_open(
    platform: str, attention: str, kernel: Any
) -> None:
    path = chosen(platform, attention)
    if kernel is None:
        assert path is WINDOWS
    else:
        assert path.attend.keywords == {"kernel": kernel}  # type: ignore[attr-defined]


def test_auto_takes_windows_where_the_kernel_does_not_fit() -> None:
    narrow = dataclasses.replace(WIDE, head_width=64)
    assert chosen("tpu", "auto", model=narrow) is WINDOWS


@pytest.mark.parametrize(
    ("platform", "width", "page", "message"),
    [
        ("cpu", 128, 16, r"sampler\.attention must be .* on 'cpu'.* 'gpu' and 'tpu'.*got 'pages'"),
        ("tpu", 64, 16, r"model\.head_width must be a multiple of 128 .*got 64.*windows"),
        ("tpu", 128, 8, r"sampler\.page_tokens must be >= 16 .*got 8.*windows"),
        ("gpu", 48, 16, r"model\.head_width must be a power of two >= 16 .*got 48"),
        ("gpu", 8, 16, r"model\.head_width must be a power of two >= 16 .*got 8"),
        ("gpu", 64, 8, r"sampler\.page_tokens must be >= 16 .*got 8"),
    ],
)
def test_pages_without_a_kernel_that_fits_are_refused(
    platform: str, width: int, page: int, message: str
) -> None:
    config = SamplerConfig(page_tokens=page, attention="pages")
    model = dataclasses.replace(WIDE, head_width=width)
    with pytest.raises(ConfigError, match=message):
        choose_path(config, decoder_model(model, VOCAB), platform=platform)


LOOKS = {
    "window": AttentionTraits(window=5, windowed_layers=(0,)),
    "score_cap": AttentionTraits(score_cap=20.0),
}


@pytest.mark.parametrize("name", LOOKS)
def test_a_kernel_is_never_chosen_for_a_model_whose_look_it_does_not_know(name: str) -> None:
    model = dataclasses.replace(WIDE, traits=Traits(attention=LOOKS[name]))
    assert chosen("tpu", "auto", model=model) is WINDOWS
    with pytest.raises(ConfigError, match=rf"attention\.{name} must be not set .*windows"):
        chosen("tpu", "pages", model=model)


def test_pages_asked_for_on_this_platform_are_refused_before_anything_compiles() -> None:
    config = dataclasses.replace(CONFIG, attention="pages")
    with pytest.raises(ConfigError, match=r"sampler\.attention"):
        compile_programs(config, decoder_model(MODEL, VOCAB))


# The decode program on meshes.

SMALL = ModelConfig(1, 16, 4, 2, 128, 24)
EVEN = 20  # a vocabulary that a tensor axis cuts
SIZES = SamplerConfig(
    rows=4, context_tokens=32, decode_tokens=3, page_tokens=16, prefill_lanes=4, max_stop_ids=1
)


def mesh_of(fsdp: int, tensor: int) -> Mesh | None:
    if fsdp == tensor == 1:
        return None
    return make_mesh(jax.devices()[: fsdp * tensor], {"fsdp": fsdp, "tensor": tensor})


def make_params() -> Any:
    return jax.jit(partial(_params, SMALL))(jax.random.key(0))


def _params(model: ModelConfig, key: jax.Array) -> Any:
    return unstack(init(model, EVEN, key))


def small_state(shards: int) -> SamplerState:
    return initial_state(SIZES, decoder_model(SMALL, EVEN), platform="cpu", shards=shards)


def uneven_input(shards: int) -> DecodeInput:
    """The first rows, a shard of their own where there are two, end long before the others."""
    rng = np.random.default_rng(0)
    inputs = idle_decode(SIZES, EVEN, SIZES.windows[-1])
    plan = inputs.plan
    plan.served[:] = inputs.update.changed[:] = True
    plan.tenures[:] = 1
    rows = inputs.update.rows
    rows.token[:] = rng.integers(0, EVEN, SIZES.rows)
    rows.active[:] = True
    rows.limit[:] = [2, 2, 9, 9]
    rows.key[:] = rng.integers(0, 2**32, rows.key.shape, np.uint32)
    pages = 1 + np.arange(plan.tables.size).reshape(plan.tables.shape)
    plan.tables[:] = np.resize(pages[: SIZES.rows // shards], pages.shape)
    return inputs


def decode_program(path: AttentionPath, mesh: Mesh | None) -> tuple[Any, tuple[Any, ...]]:
    """The jitted program and its operands."""
    layout: Layout = make_layout(SIZES, decoder_model(SMALL, EVEN), mesh)
    shards = layout.shards
    model = decoder_model(SMALL, EVEN)
    program = partial(decode, steps=3, top_logprobs=0, model=model, path=path)
    caches = small_state(shards)
    layers = path.new_views(caches.caches, SIZES.rows, SIZES.windows[-1])
    views = Views(jnp.zeros(SIZES.rows, jnp.int32), layers)
    operands = (make_params(), caches, views, uneven_input(shards))
    state, _, decoded = jax.eval_shape(program, *operands)
    axes = SamplerState(
        leading(state.caches, "kv_heads", "pages"),
        leading(state.tokens, "pages"),
        rows=leading(state.rows, "rows"),
    )
    of_views = Views(leading(views.tenures, "rows"), leading(layers, "kv_heads", "rows"))
    jitted = layout.jit(
        program,
        inputs=(sampler_axes(SMALL, SIZES.weights), axes, of_views, leading(operands[-1], "rows")),
        outputs=(axes, of_views, leading(decoded, "rows")),
        donate=(1, 2),
    )
    return jitted, operands


def place(operands: tuple[Any, ...], compiled: Any) -> Any:
    shardings, _ = compiled.input_shardings
    return jax.device_put(operands, shardings)


@pytest.mark.slow
@pytest.mark.parametrize(("fsdp", "tensor"), [(1, 1), (2, 2)])
def test_the_decode_program_with_the_kernel_lowers_for_tpus(fsdp: int, tensor: int) -> None:
    mesh = mesh_of(fsdp, tensor)
    path = choose_path(SIZES, decoder_model(SMALL, EVEN), platform="tpu", mesh=mesh)
    jitted, operands = decode_program(path, mesh)
    lowered = jitted.trace(*operands).lower(lowering_platforms=("tpu",))
    assert LOWERED in lowered.as_text()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["windows", "pages"])
def test_shards_that_end_at_different_times_do_not_wait_for_each_other(name: str) -> None:
    path = WINDOWS if name == "windows" else pages_path(by_heads(plain_kernel))
    alone, operands = decode_program(WINDOWS, None)
    *_, expected = alone(*operands)
    jitted, operands = decode_program(path, mesh_of(2, 2))
    compiled = jitted.lower(*operands).compile()
    # On CPU devices it is a meeting of all of them: without this line the test could only hang.
    assert "collective-permute" not in compiled.as_text()
    *_, decoded = compiled(*place(operands, compiled))
    assert decoded.num_sampled.tolist() == expected.num_sampled.tolist() == [1, 1, 3, 3]
    drawn = sampled(decoded)
    np.testing.assert_array_equal(decoded.draws.token[drawn], expected.draws.token[drawn])
    np.testing.assert_allclose(
        decoded.draws.logprob[drawn], expected.draws.logprob[drawn], atol=1e-5
    )


def test_no_draw_makes_devices_meet_that_share_no_row() -> None:
    mesh = mesh_of(2, 2)
    assert mesh is not None
    cut = NamedSharding(mesh, PartitionSpec("fsdp", "tensor"))
    rows = NamedSharding(mesh, PartitionSpec("fsdp"))
    draw = jax.jit(draw_from_mass, in_shardings=(cut, rows), out_shardings=rows)
    operands = np.ones((4, EVEN), np.float32), np.ones(4, np.float32)
    assert "collective-permute" not in draw.lower(*operands).compile().as_text()


def test_the_platform_is_that_of_the_mesh() -> None:
    assert platform_of(mesh_of(2, 1)) == platform_of(None) == "cpu"
