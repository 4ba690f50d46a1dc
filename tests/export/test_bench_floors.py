"""Bytes and operations of a workload, against numbers counted by hand and by loops."""

import pytest

from andrea_export.bench.floors import FORMULAS, work_of
from andrea_export.bench.options import BenchOptions, parse_sizes
from andrea_export.bench.result import Row
from andrea_export.bench.workloads import Workload, plan
from andrea_export.errors import InputError
from andrea_model import AndreaConfig
from andrea_model.presets import PRESETS

# 92,294,400 parameters of andrea-120m, of which 1024 · 768 are positions: README of the model.
TIED_120M = 92_294_400
POSITIONS_120M = 1024 * 768


def one_step(batch, context):
    return Workload("decode", batch, context, steps=1)


def test_weight_bytes_of_a_decode_step_of_120m_are_all_weights_and_one_position():
    work = work_of(PRESETS["andrea-120m"], "fp32", one_step(1, 64))
    assert work.weight_bytes == 4 * (TIED_120M - POSITIONS_120M + 768)


def test_weight_bytes_of_an_untied_head_count_the_looked_up_rows_of_wte_apart():
    config = AndreaConfig(100, 32, 16, 1, 2, bias="none", norm_affine="none", tied_head=False)
    work = work_of(config, "fp16", one_step(3, 8))
    matrices = 4 * 16 * 16 + 2 * 16 * 64
    head, token_rows, position_rows = 100 * 16, 3 * 16, 16
    assert work.weight_bytes == 2 * (matrices + head + token_rows + position_rows)


def test_weight_bytes_count_no_row_of_an_untied_wte_twice():
    config = AndreaConfig(100, 32, 16, 1, 2, bias="none", norm_affine="none", tied_head=False)
    work = work_of(config, "fp32", Workload("prefill", 5, 32, steps=3))
    matrices = 4 * 16 * 16 + 2 * 16 * 64
    # 160 tokens of a vocabulary of 100, head and wte each; 32 positions
    assert work.weight_bytes == 4 * (matrices + 2 * 100 * 16 + 32 * 16)


@pytest.mark.parametrize(("dtype", "item"), [("fp64", 8), ("fp32", 4), ("fp16", 2), ("bf16", 2)])
def test_cache_bytes_of_a_decode_step_read_all_but_its_own_token_and_write_that(dtype, item):
    work = work_of(PRESETS["andrea-120m"], dtype, one_step(8, 64))
    read = 2 * 12 * 8 * 63 * 768
    written = 2 * 12 * 8 * 768
    assert work.cache_bytes == item * (read + written)


def test_cache_bytes_of_a_prefill_are_written_only():
    work = work_of(PRESETS["andrea-120m"], "fp32", Workload("prefill", 2, 100, steps=3))
    assert work.cache_bytes == 4 * 2 * 12 * 2 * 100 * 768


def test_logit_bytes_are_float32_of_the_last_token_of_each_row():
    work = work_of(PRESETS["andrea-120m"], "fp16", Workload("prefill", 5, 100, steps=3))
    assert work.logit_bytes == 4 * 5 * 8449


def test_operations_of_a_prefill_equal_a_loop_over_its_products():
    batch, tokens, d, layers, vocab = 2, 7, 16, 3, 50
    config = AndreaConfig(vocab, 32, d, layers, 2)
    expected = 0
    for _ in range(batch):
        for token in range(tokens):
            for _ in range(layers):
                expected += 4 * 2 * d * d  # q, k, v, o
                expected += 2 * 2 * d * 4 * d  # fc1, fc2
                expected += 2 * 2 * d * (token + 1)  # scores and their sum, of every slot seen
        expected += 2 * d * vocab  # the head, of the last token
    assert work_of(config, "fp32", Workload("prefill", batch, tokens, 3)).operations == expected


def test_operations_of_swiglu_count_gate_and_value():
    config = AndreaConfig(50, 32, 64, 1, 2, activation="swiglu", mlp_ratio=1)
    expected = 2 * (4 * 64 * 64 + 64 * 128 + 64 * 64) + 4 * 64 * 8 + 2 * 50 * 64
    assert work_of(config, "fp32", one_step(1, 8)).operations == expected


def test_work_of_several_steps_is_that_of_the_mean_context():
    several = work_of(PRESETS["andrea-nano"], "fp32", Workload("decode", 1, 20, steps=5))
    single = [work_of(PRESETS["andrea-nano"], "fp32", one_step(1, c)) for c in range(16, 21)]
    assert several.nbytes == pytest.approx(sum(work.nbytes for work in single) / 5)
    assert several.operations == pytest.approx(sum(work.operations for work in single) / 5)


def test_floor_is_the_slower_of_memory_and_matmul_and_says_which():
    work = work_of(PRESETS["andrea-nano"], "fp32", one_step(1, 16))
    assert work.seconds(1e9, 1e15) == pytest.approx(work.nbytes / 1e9)
    assert work.bound(1e9, 1e15) == "memory"
    assert work.seconds(1e15, 1e9) == pytest.approx(work.operations / 1e9)
    assert work.bound(1e15, 1e9) == "matmul"


def test_formulas_name_every_part_of_the_work():
    assert {"floor", "weight bytes", "cache bytes", "logit bytes", "operations"} == set(FORMULAS)


def row(*rounds, phase="decode", batch=4, context=10, read_rates=(1e9,)):
    workload = Workload(phase, batch, context, steps=1)
    work = work_of(PRESETS["andrea-nano"], "fp32", workload)
    return Row("it", workload, work, tuple(rounds), tuple(read_rates), 1e15, 0.5)


def test_row_percentiles_are_of_all_samples_of_all_rounds():
    # 1..100: between the 50th and the 51st of them, and so on (Hyndman and Fan's type 7).
    found = row(tuple(range(1, 51)), tuple(range(51, 101)))
    assert found.percentile(50) == pytest.approx(50.5)
    assert found.percentile(90) == pytest.approx(90.1)
    assert found.percentile(99) == pytest.approx(99.01)


def test_row_rate_counts_one_token_a_row_for_decode_and_the_prompt_for_prefill():
    assert row((0.5, 0.5, 0.5)).tokens_per_second == pytest.approx(8)
    assert row((0.5,), phase="prefill").tokens_per_second == pytest.approx(80)


def test_row_has_a_time_to_first_token_only_for_prefill():
    assert row((0.25,), phase="prefill").time_to_first_token == 0.25
    assert row((0.25,)).time_to_first_token is None


def test_row_floor_is_at_the_best_rate_of_any_round():
    found = row((0.5,), (0.5,), read_rates=(1e6, 4e6))
    assert found.floor_seconds == pytest.approx(found.work.nbytes / 4e6)
    assert found.percent_of_floor == pytest.approx(100 * found.floor_seconds / 0.5)


@pytest.mark.parametrize("text", ["", "1,", "0", "-1", "1.5", "eight", "1;8", "1 8", "٢x"])
def test_parse_sizes_refuses_what_is_no_list_of_positive_numbers(text):
    with pytest.raises(InputError, match=r"--batch takes whole numbers .* not '"):
        parse_sizes(text, "--batch")


def test_parse_sizes_keeps_the_order_and_drops_repetitions():
    assert parse_sizes("512, 64,512", "--context") == (512, 64)


def test_plan_holds_prefill_and_decode_of_every_batch_and_context_in_ascending_order():
    options = BenchOptions(batches=(8, 1), contexts=(32, 16), tokens=4)
    found = [(each.phase, each.batch, each.context) for each in plan(options, [("a", 256)])]
    assert found == [
        (phase, batch, context)
        for batch in (1, 8)
        for context in (16, 32)
        for phase in ("prefill", "decode")
    ]


def test_plan_lets_decode_end_at_its_context_even_when_that_is_full():
    options = BenchOptions(contexts=(256,), tokens=16)
    decode = plan(options, [("a", 256)])[1]
    assert (decode.prompt, decode.prompt + decode.steps) == (240, 256)


def test_plan_of_a_context_of_one_token_has_no_decode():
    found = plan(BenchOptions(contexts=(1, 2)), [("a", 256)])
    assert [(each.phase, each.context) for each in found] == [
        ("prefill", 1),
        ("prefill", 2),
        ("decode", 2),
    ]


def test_plan_by_default_goes_as_far_as_the_shortest_model():
    limits = [("long", 1024), ("short", 256)]
    assert {each.context for each in plan(BenchOptions(), limits)} == {64, 256}
    assert {each.context for each in plan(BenchOptions(), limits[:1])} == {64, 512}


def test_plan_refuses_a_context_beyond_one_of_the_models_with_its_name():
    limits = [("long", 1024), ("short", 256)]
    with pytest.raises(InputError, match="context 512 is beyond short, which takes 256 tokens"):
        plan(BenchOptions(contexts=(64, 512)), limits)


@pytest.mark.parametrize(
    ("field", "value"), [("batches", ()), ("contexts", (0,)), ("rounds", 0), ("tokens", 0)]
)
def test_options_refuse_nothing_to_do(field, value):
    with pytest.raises(InputError, match=field):
        BenchOptions(**{field: value})
